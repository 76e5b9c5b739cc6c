"""The scheduler's plans, in integers only; only the engine interprets them.

Source: ActionFlow section 3.1 (cross-request pipelining). A plan is the set of row ranges that one packed
forward runs, and the slots that hold them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, order=True)
class FrameRef:
    """One frame of one session. `seq` grows within a session; `epoch` grows with each reset."""

    session: int
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame waiting for its prefill. rows: L_P, its prefill length. deadline_ns: when its action is due."""

    ref: FrameRef
    rows: int
    deadline_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of rows of one frame in one pass.

    slot, generation: the slot that holds its KV, and a count that distinguishes one use of the slot from the next.
    start, length: rows enter the slot at positions start .. start+length-1.
    stage: 0 is the prefill; stage j samples action token j. The row of stage j >= 1 is token j-1.
    """

    frame: FrameRef
    slot: int
    generation: int
    start: int
    length: int
    stage: int


@dataclass(frozen=True, slots=True)
class Move:
    """A copy to make after the pass: the first `length` rows of slot `source` to slot `target` (copy shift only)."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Pass:
    """One run through the network.

    segments: prefills first, then decode rows by ascending slot.
    finished: the segments whose sampled token completes their frame.
    moves: slot copies to make after the pass, in this order; none reads a slot that an earlier one has written.
    """

    number: int
    segments: tuple[Segment, ...]
    finished: tuple[Segment, ...]
    moves: tuple[Move, ...] = ()

    @property
    def rows(self) -> int:
        """L_Q, the rows of the packed tensor."""
        return sum(segment.length for segment in self.segments)

    @property
    def prefills(self) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.stage == 0)

    @property
    def decodes(self) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.stage > 0)


class Leaving(Enum):
    """Why a frame leaves the scheduler."""

    DONE = "done"
    SUPERSEDED = "superseded"
    EPOCH_CHANGED = "epoch_changed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Departure:
    """A frame that leaves the scheduler, and why. Each offered frame leaves exactly once."""

    frame: FrameRef
    why: Leaving
