"""The scheduler's plans, in integers only; only the engine interprets them.

Source: ActionFlow section 3.1 (cross-request pipelining). A plan is the set of row ranges that one packed
forward runs, and the slots that hold them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

Ref = TypeVar("Ref", bound=Hashable)
"""The name of a sequence: a FrameRef, or the number of a chat request."""


@dataclass(frozen=True, slots=True, order=True)
class FrameRef:
    """One frame of one session. `seq` grows within a session; `epoch` grows with each reset."""

    session: int
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame waiting for its prefill."""

    ref: FrameRef
    rows: int
    """L_P, its prefill length."""
    deadline_ns: int = 0
    """When its action is due."""
    expires_ns: int = 0
    """The time from which its action is too old; 0 = never."""
    waits_until_ns: int = 0
    """How long it may wait for its turn (scheduler/turns.py); 0 = for as long as it takes."""


@dataclass(frozen=True, slots=True)
class SlotPosition:
    """A position of a slot."""

    slot: int
    position: int


class DraftForm(Enum):
    """The arrangement of the drafts after a sequence's newest token: none, each after the one before it, or each
    after any earlier one.
    """

    NONE = "none"
    CHAIN = "chain"
    TREE = "tree"


class Before(Enum):
    """The change of a slot with memory before the rows of a segment run.

    FOLD: the segment after the sink enters the memory, and every pair after the sink is dropped. FOLD_KEEPING: the
    pairs after that segment stay, and move up to the sink. REWIND: pairs after the sink are written again.
    """

    NOTHING = "nothing"
    FOLD = "fold"
    FOLD_KEEPING = "fold_keeping"
    REWIND = "rewind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(Generic[Ref]):
    """A run of rows of one sequence in one pass."""

    sequence: Ref
    slot: int
    start: int
    """The position of the first row in the slot. After a prompt only the device knows it; `start` is then the furthest
    it may be.
    """
    length: int
    """Rows, which take consecutive positions."""
    stage: int
    """0 in a part of the prompt. With tokens, stage j samples token j, and its first row is token j-1; further rows
    are drafts, also after a prompt. In other programs (contract.StageProgram) it is the number of the pass, from 1.
    """
    generation: int = 0
    """A count that distinguishes one use of the slot from the next."""
    samples: int = 1
    """Rows whose output is read, the last of the segment; 0 for a part of a prompt that is not its end."""
    certain: bool = True
    """True where `start` is exact, since no pass of several rows is uncommitted."""
    guess: SlotPosition | None = None
    """Where the drafts after a prompt are read; None = a constant."""
    tolerance_bins: int = 0
    """As in Speculation."""
    drafts: int = 0
    """How many of the rows are drafts."""
    group: int = 0
    """The group of the stage (contract.Stage)."""
    advances: bool = True
    """False where the sequence's next rows overwrite these (contract.Stage)."""
    passes: int = 1
    """Passes of its program that it takes: all of them in a whole pass."""
    before: Before = Before.NOTHING
    """The change of a slot with memory (scheduler/folding.py) before the rows run."""
    gated: bool = False
    """True where the rows read the slot's memory."""
    folded: int = 0
    """Tokens that have left the slot for its memory."""
    form: DraftForm = DraftForm.NONE
    """The form of the drafts that are verified, and of those made after the rows; NONE where the drafts are the tokens
    of the pass before (Speculation).
    """


@dataclass(frozen=True, slots=True)
class Move:
    """A copy to make after the pass: the first `length` rows of slot `source` to slot `target` (copy shift only)."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Pass(Generic[Ref]):
    """One run through the network of one model."""

    number: int
    segments: tuple[Segment[Ref], ...]
    """Prefills first, then decode rows by ascending slot."""
    moves: tuple[Move, ...] = ()
    """Slot copies to make after the pass, in this order; none reads a slot that an earlier one has written."""

    @property
    def whole(self) -> bool:
        """True where frames take all of their passes at once: their prompts, then every step."""
        return any(segment.passes > 1 for segment in self.segments)

    @property
    def shape(self) -> tuple[int, int, bool]:
        """The numbers that its time follows from (PassTimes.pass_ns)."""
        return len(self.prefills), self.decode_rows, self.whole

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

    @property
    def several(self) -> int:
        """Rows of prompts, and of segments in which tokens run again: those that cost as a prompt's do."""
        return sum(segment.length for segment in self.segments if segment.stage == 0 or segment.length > 1)

    @property
    def single(self) -> int:
        """Segments of one token."""
        return sum(segment.stage > 0 and segment.length == 1 for segment in self.segments)

    @property
    def decode_rows(self) -> int:
        """Rows that are not of prompts, drafts included; a step that overwrites its rows counts as one."""
        return sum(_decode_rows(segment) for segment in self.segments)


def _decode_rows(segment: Segment[Ref]) -> int:
    if segment.stage == 0:
        return segment.drafts
    return segment.length if segment.advances else 1


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Ref]):
    """The result of a segment: the tokens verified by it, none before the end of a prompt, at most one per row."""

    sequence: Ref
    tokens: tuple[int, ...]
    finite: bool = True
    """False when a logit that they come from was not finite."""
    found: int = 0
    """Drafts that now follow the newest token."""


class Leaving(Enum):
    """The reason why a frame leaves the scheduler.

    SUPERSEDED: by a newer frame before it began, or, if it was early, later. OVERTAKEN: by a newer one that was
    answered first. EXPIRED: too old to be answered, and a newer one is in flight. EARLY: it came before its turn, found
    no gap, and its turn comes too late. REJECTED: by the policy, before it began.
    """

    DONE = "done"
    SUPERSEDED = "superseded"
    OVERTAKEN = "overtaken"
    EXPIRED = "expired"
    EARLY = "early"
    REJECTED = "rejected"
    EPOCH_CHANGED = "epoch_changed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Departure:
    """A frame that leaves the scheduler, and the reason. Each offered frame leaves exactly once."""

    frame: FrameRef
    reason: Leaving
    passes: int = field(default=0, compare=False)
    """Committed passes in which it took part."""
    verified: int = field(default=0, compare=False)
    """Its verified tokens, at most K; its passes where the program has no tokens."""
