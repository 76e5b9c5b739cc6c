"""The slots of one session: a ring of K adjacent ones, one per pass of its frames, and where the next prefill goes.

Two ways to rotate the ring (ActionFlow section 3.3):
- rotate: a frame keeps its slot, and the slot of the next prefill advances; no bytes are moved.
- copy: a prefill always enters the first slot, and after each pass the KV of every frame in flight is
  copied to the following slot, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from edgeflow.contract import Speculation
from edgeflow.scheduler.plan import FrameRef, Move, Place


class Shift(str, Enum):
    """How the ring rotates."""

    ROTATE = "rotate"
    COPY = "copy"


@dataclass(slots=True, kw_only=True, eq=False)
class FrameInFlight:
    """A frame in flight.

    stage: of its next pass. length: rows of its KV in the slot. Both count one token for a pass that is not
    committed, the fewest it can settle. slack: further rows that such passes may have settled. settled: tokens known.
    speculation: how its drafts are verified; None without. guess: where the first ones are read. passes: planned;
    committed: of which so many are.
    """

    frame: FrameRef
    rows: int
    slot: int
    generation: int
    deadline_ns: int = 0
    expires_ns: int = 0
    speculation: Speculation | None = None
    guess: Place | None = None
    stage: int = 0
    length: int = 0
    slack: int = 0
    settled: int = 0
    passes: int = 0
    committed: int = 0

    def leaves_after(self, stages: int) -> int:
        """Passes after which it leaves even if tokens are not settled."""
        return self.speculation.most_passes(stages) if self.speculation else stages


class Ring:
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


class CopyingRing(Ring):
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


RINGS = {Shift.ROTATE: Ring, Shift.COPY: CopyingRing}
