"""The scheduler's plans, in integers only; only the engine interprets them.

Source: ActionFlow section 3.1 (cross-request pipelining). A plan is the set of row ranges that one packed
forward runs, and the slots that hold them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

Ref = TypeVar("Ref", bound=Hashable)
"""What a sequence is known by: a FrameRef, or the number of a chat request."""


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
class Segment(Generic[Ref]):
    """A run of rows of one sequence in one pass.

    slot, generation: the slot that holds its KV, and a count that distinguishes one use of the slot from the next.
    start, length: rows enter the slot at positions start .. start+length-1. Behind a prompt the device knows where they
    enter; `start` is then the furthest it may be. certain: it is exact, since no pass of several rows is uncommitted.
    stage: 0 is a part of the prompt; stage j samples token j, and its first row is token j-1. Further rows are drafts.
    samples: rows that are sampled, the last of the segment; 0 for a part of a prompt that is not its end.
    """

    sequence: Ref
    slot: int
    start: int
    length: int
    stage: int
    generation: int = 0
    samples: int = 1
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """A copy to make after the pass: the first `length` rows of slot `source` to slot `target` (copy shift only)."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Pass(Generic[Ref]):
    """One run through the network of one model.

    segments: prefills first, then decode rows by ascending slot.
    moves: slot copies to make after the pass, in this order; none reads a slot that an earlier one has written.
    """

    number: int
    segments: tuple[Segment[Ref], ...]
    moves: tuple[Move, ...] = ()

    @property
    def rows(self) -> int:
        """L_Q, the rows of the packed tensor."""
        return sum(segment.length for segment in self.segments)

    @property
    def prefills(self) -> tuple[Segment[Ref], ...]:
        return tuple(segment for segment in self.segments if segment.stage == 0)

    @property
    def decodes(self) -> tuple[Segment[Ref], ...]:
        return tuple(segment for segment in self.segments if segment.stage > 0)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Ref]):
    """The result of a segment: the tokens that are settled now, none before the end of a prompt, at most one per row.

    finite: False when a logit behind them was not.
    """

    sequence: Ref
    tokens: tuple[int, ...]
    finite: bool = True


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
