"""The way of a sequence through its slot: a straight line, or segments that enter a memory (EdgeInfinite, 3.2).

A *route* says which run of a sequence's positions comes next, and where in the slot it enters. Integers only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeflow.scheduler.plan import Before

UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRun:
    """Positions first .. stop of a sequence, which may be cut into several segments of passes."""

    first: int
    stop: int
    folded: int = 0
    """Tokens that have left the slot for its memory; a position's place is the position less these."""
    before: Before = Before.NOTHING
    """The change of the slot before the first row."""
    gated: bool = False
    """The rows read the memory."""
    again: bool = False
    """The rows are embedded from the slot's token ids, not from the prompt."""


class Route:
    """The runs of one sequence, one after the other: here of a slot that holds every position at its own place.

    folded: segments in the memory of the slot, those of runs that have been taken included.
    """

    folded = 0

    def ahead(self, known: int) -> int:  # noqa: ARG002 - alike for all
        """How many drafts may run after the newest of so many known tokens before the next fold."""
        return UNBOUNDED

    def folded_at(self, known: int) -> int:  # noqa: ARG002 - alike for all
        """How many of the `folded` segments are folded once `known` tokens are known."""
        return 0

    def take(self, position: int, rows: int, known: int) -> RouteRun:
        """Take the run that begins at `position`, or further back where tokens are run again.

        rows: of the prompt. known: tokens that are read or planned, the newest included; more than `position`.
        """
        if position < rows:
            return RouteRun(first=position, stop=rows)
        return RouteRun(first=position, stop=known, again=True)


class SlotUse:
    """How sequences use the slots of a store: here, slots that hold every position of a sequence.

    reusable: of so many rows, after how many another sequence may continue; it computes the rest again. again: shared
    rows that it computes again besides: after them, a drafter needs the features of a row and the token that follows.
    shares_slots: a sequence that begins with a prefix runs in the prefix's slot, after it; otherwise in one to which
    the prefix's slot is copied.
    """

    shares_slots = True

    def __init__(self, reusable: Callable[[int], int], again: int = 0) -> None:
        self._reusable = reusable
        self._again = again

    def reusable(self, prefix: int, shared: int, rows: int) -> int:  # noqa: ARG002 - alike for all
        """How many rows a prompt of `rows` need not compute that shares the first `shared` with a prefix."""
        return self._reusable(max(shared - self._again, 0))

    def route(self, prefix: int = 0) -> Route:  # noqa: ARG002 - alike for all
        """The route of a sequence that continues a prefix of so many rows."""
        return Route()

    def copied(self, known: int, capacity: int) -> int:  # noqa: ARG002 - alike for all
        """How many places of a slot to copy for a sequence that continues after its first `known` rows."""
        return known

    def unfolded(self, capacity: int) -> int:
        """The longest sequence of which nothing is folded."""
        return capacity

    def compressed(self, folded: int) -> int:  # noqa: ARG002 - alike for all
        """The tokens of so many segments."""
        return 0

    def name(self, rows: int) -> str:  # noqa: ARG002 - alike for all
        """The route of a prompt: "short" or "long", "" where all take the same."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folding(SlotUse):
    """The sizes of a slot with memory, in tokens: what stays at the beginning, at least at the end, and what is
    folded at a time.
    """

    sink: int
    window: int
    segment: int
    keeps_pairs: bool = False
    """A fold while decoding leaves the window's keys and values as they are (`fold: cached`); otherwise its tokens
    are run again.
    """
    gates_first: bool = False
    """Segment 0 of a long prompt is gated too (`first_segment: zero`)."""
    again: int = 0
    """Shared rows to compute again, as in SlotUse."""
    shares_slots = False  # a sequence would change the prefix's memory

    @property
    def threshold(self) -> int:
        """The shortest prompt that is folded, and the number of places that a slot needs."""
        return self.sink + self.window + self.segment

    @property
    def runs_first_again(self) -> bool:
        """True where segment 0 of a prompt that was short must be run again, gated, before its fold."""
        return self.gates_first and not self.keeps_pairs

    def segments(self, known: int) -> int:
        """How many segments of so many known tokens are folded."""
        return max(0, (known - self.sink - self.window) // self.segment)

    def end(self, segments: int) -> int:
        """The first position after so many segments."""
        return self.sink + segments * self.segment

    def reusable(self, prefix: int, shared: int, rows: int) -> int:
        """As in SlotUse: the slot of the prefix holds the state after segments(prefix) segments."""
        held, wanted, shared = self.segments(prefix), self.segments(rows), max(shared - self.again, 0)
        if wanted < held or (held and shared < self.end(held)):
            return 0
        if wanted == held:
            return shared
        if self.gates_first and not held:
            return min(shared, self.sink)
        return min(shared, self.end(held + 1))

    def route(self, prefix: int = 0) -> Route:
        return FoldingRoute(self, self.segments(prefix))

    def copied(self, known: int, capacity: int) -> int:  # noqa: ARG002 - alike for all
        return capacity

    def unfolded(self, capacity: int) -> int:  # noqa: ARG002 - alike for all
        return self.threshold - 1

    def compressed(self, folded: int) -> int:
        return folded * self.segment

    def name(self, rows: int) -> str:
        return "long" if self.segments(rows) else "short"


class FoldingRoute(Route):
    """Algorithm 1 with the conventions of this project (docs/develop/long-context.md): the sink, one segment after the
    other, the rest; while decoding a fold as soon as a whole segment lies between sink and window.
    """

    def __init__(self, folding: Folding, folded: int = 0) -> None:
        self._folding = folding
        self.folded = folded
        self._rewound = False  # segment 0 runs again, gated

    def ahead(self, known: int) -> int:
        folding = self._folding
        return max(folding.end(self.folded + 1) + folding.window - 1 - known, 0)

    def folded_at(self, known: int) -> int:
        return min(self.folded, self._folding.segments(known))

    def take(self, position: int, rows: int, known: int) -> RouteRun:
        return self._of_prompt(position, rows) if position < rows == known else self._decoding(position, rows, known)

    def _of_prompt(self, position: int, rows: int) -> RouteRun:
        folding = self._folding
        wanted, before = folding.segments(rows), Before.NOTHING
        if self.folded < wanted and position == folding.end(self.folded + 1):
            self.folded += 1
            before = Before.FOLD
        stop = rows
        if self.folded < wanted:
            stop = folding.sink if position < folding.sink else folding.end(self.folded + 1)
        gated = self.folded > 0 or (folding.gates_first and wanted > 0 and position >= folding.sink)
        return self._run(position, stop, before, gated)

    def _decoding(self, position: int, rows: int, known: int) -> RouteRun:
        folding = self._folding
        if self.folded == folding.segments(known):
            return self._run(position, known, Before.NOTHING, self.folded > 0, again=True)
        if folding.runs_first_again and not folding.segments(rows) and not self.folded:
            if not self._rewound:
                self._rewound = True
                return self._run(folding.sink, folding.end(1), Before.REWIND, gated=True, again=True)
            if position < folding.end(1):
                return self._run(position, folding.end(1), Before.NOTHING, gated=True, again=True)
        self.folded += 1
        if folding.keeps_pairs:
            return self._run(position, known, Before.FOLD_KEEPING, gated=True, again=True)
        return self._run(folding.end(self.folded), known, Before.FOLD, gated=True, again=True)

    def _run(self, first: int, stop: int, before: Before, gated: bool, *, again: bool = False) -> RouteRun:
        folded = self.folded * self._folding.segment
        return RouteRun(first=first, stop=stop, folded=folded, before=before, gated=gated, again=again)
