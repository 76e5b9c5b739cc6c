"""The ring of K slots of a session, and the frames in flight that use them.

Two ways to advance the ring (ActionFlow section 3.3):
- rotate: a frame keeps its slot, and the slot of the next prefill advances; no bytes are moved.
- copy: a prefill always enters the first slot, and after each pass the KV of every frame in flight is
  copied to the following slot, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.contract import Speculation
from edgeflow.scheduler.plan import FrameRef, Move, SlotPosition


@dataclass(slots=True, kw_only=True, eq=False)
class FrameInFlight:
    """A frame in flight."""

    frame: FrameRef
    rows: int
    slot: int
    generation: int
    deadline_ns: int = 0
    expires_ns: int = 0
    waits_until_ns: int = 0
    early: bool = False
    """It began before its turn, and rests while frames of other sessions are due (scheduler/turns.py)."""
    speculation: Speculation | None = None
    """How its drafts are verified; None for a frame without drafts."""
    guess: SlotPosition | None = None
    """Where its first drafts are read; None = a constant."""
    stage: int = 0
    """The stage of its next pass."""
    length: int = 0
    """Rows of its KV in the slot. Like `stage`, it counts one token per pass in flight, the fewest that a pass can
    verify.
    """
    slack: int = 0
    """Further rows that the passes in flight may turn out to have verified."""
    verified: int = 0
    """Its verified tokens."""
    passes: int = 0
    """Passes that are planned."""
    committed: int = 0
    """Passes that are committed."""

    def leaves_after(self, stages: int) -> int:
        """Passes after which it leaves, with or without unverified tokens."""
        return self.speculation.most_passes(stages) if self.speculation else stages


class SlotRing:
    """The slots of one session: frames keep theirs, and the index of the next prefill rotates."""

    def __init__(self, slots: range) -> None:
        self.slots = slots
        self._claims = 0

    def claim(self) -> tuple[int, int]:
        """Slot and generation for a new prefill."""
        slot = self.slots[self._claims % len(self.slots)]
        self._claims += 1
        return slot, self._claims

    def advance(self, flights: list[FrameInFlight]) -> tuple[Move, ...]:  # noqa: ARG002 - nothing moves
        """Update the slots of the frames in flight after a pass; return the copies that the engine must make."""
        return ()


class CopyingRing(SlotRing):
    """A ring in which frames move to the next slot after each pass, last stage first so that nothing is overwritten."""

    def claim(self) -> tuple[int, int]:
        self._claims += 1
        return self.slots[0], self._claims

    def advance(self, flights: list[FrameInFlight]) -> tuple[Move, ...]:
        moves = []
        for flight in sorted(flights, key=lambda flight: -flight.slot):
            moves.append(Move(flight.slot, flight.slot + 1, flight.length + flight.slack))
            flight.slot += 1
        return tuple(moves)
