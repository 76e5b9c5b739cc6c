"""Routes through slots with memory: every position runs where the conventions say, however passes cut it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.scheduler.folding import Folding, FoldingRoute
from edgeflow.scheduler.plan import Before, Outcome, Pass, Segment
from edgeflow.scheduler.requests import RequestPlan, Requests

SIZES = st.builds(
    Folding,
    sink=st.integers(0, 6),
    window=st.integers(1, 7),
    segment=st.integers(1, 9),
    keeps_pairs=st.booleans(),
    gates_first=st.booleans(),
)


@dataclass
class PositionList:
    """The places of a slot as a list of positions, changed as the device changes them."""

    folding: Folding
    held: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def run(self, segment: Segment[int]) -> tuple[list[int], list[int]]:
        """The positions of the rows, and what the last of them sees in the slot."""
        folding, first = self.folding, self.folding.sink
        stop = folding.end(1)
        if segment.before in (Before.FOLD, Before.FOLD_KEEPING):
            self.memory += self.held[first:stop]
            kept = self.held[stop:] if segment.before is Before.FOLD_KEEPING else []
            self.held = [*self.held[:first], *kept]
        if segment.before is Before.REWIND:
            self.held = self.held[:first]
        assert segment.start <= len(self.held), "no place is left out"
        assert segment.folded == len(self.memory)
        rows = [segment.start + segment.folded + at for at in range(segment.length)]
        self.held = [*self.held[: segment.start], *rows]
        assert len(self.held) <= folding.threshold, "a slot needs no more places"
        return rows, list(self.held)


def steps(plan: RequestPlan, most: st.DataObject) -> list[Segment[int]]:
    """All segments of a request, cut at random, its tokens committed as they come."""
    found = []
    while (segment := plan.next(most.draw(st.integers(1, 12)))) is not None:
        found.append(segment)
        plan.commit(Outcome(plan.number, (7,) * segment.samples))
    return found


@given(SIZES, st.integers(1, 70), st.integers(1, 40), st.data())
def test_the_state_follows_from_the_known_tokens(folding: Folding, rows: int, tokens: int, data: st.DataObject):
    plan = RequestPlan(number=0, slot=0, rows=rows, tokens=tokens, route=folding.route())
    slot, known, sink, gated = PositionList(folding), rows, folding.sink, False
    for segment in steps(plan, data):
        ran, sees = slot.run(segment)
        assert len(slot.memory) % folding.segment == 0
        assert slot.memory == list(range(sink, sink + len(slot.memory))), "each token is folded once, in order"
        in_memory = bool(slot.memory)
        first_gated = folding.gates_first and ran[0] >= sink and not in_memory
        assert segment.gated == in_memory or (segment.gated and first_gated)
        gated |= segment.gated
        if segment.samples:
            assert ran[-1] == known - 1, "the newest token gives the next"
            assert len(slot.memory) == folding.segments(known) * folding.segment
            assert sees == [*range(min(sink, known)), *range(sink + len(slot.memory), known)]
            known += 1
    assert known == rows + tokens
    assert gated == (folding.segments(known - 1) > 0)


@given(SIZES, st.integers(1, 70), st.data())
def test_a_prompt_runs_each_row_once(folding: Folding, rows: int, data: st.DataObject):
    plan = RequestPlan(number=0, slot=0, rows=rows, tokens=1, route=folding.route())
    ran = [
        position
        for segment in steps(plan, data)
        for position in PositionList.run(slot_at(folding, segment), segment)[0]
    ]
    assert ran == list(range(rows))


def slot_at(folding: Folding, segment: Segment[int]) -> PositionList:
    """A slot with enough in it for a segment of a prompt."""
    length = folding.threshold if segment.before is Before.FOLD else segment.start
    memory = segment.folded - (folding.segment if segment.before is Before.FOLD else 0)
    return PositionList(folding, list(range(length)), list(range(memory)))


def test_folds_of_one_request_by_hand():
    """S, W, G = 2, 3, 4: prompt of 9 is just long enough; the 13th known token brings the second fold."""
    folding = Folding(sink=2, window=3, segment=4)
    plan = RequestPlan(number=0, slot=0, rows=9, tokens=6, route=folding.route())
    found = []
    while (segment := plan.next(99)) is not None:
        found.append((segment.start, segment.length, segment.stage, segment.before, segment.gated, segment.folded))
        plan.commit(Outcome(0, (7,) * segment.samples))
    none, fold = Before.NOTHING, Before.FOLD
    assert found == [
        (0, 2, 0, none, False, 0),
        (2, 4, 0, none, False, 0),
        (2, 3, 0, fold, True, 4),
        (5, 1, 1, none, True, 4),
        (6, 1, 2, none, True, 4),
        (7, 1, 3, none, True, 4),
        (2, 3, 4, fold, True, 8),
        (5, 1, 5, none, True, 8),
    ]


@given(SIZES, st.integers(1, 60), st.integers(1, 60), st.integers(0, 60))
def test_a_prefix_is_reused_up_to_where_its_slot_stands(folding: Folding, prefix: int, rows: int, shared: int):
    shared = min(shared, prefix, rows - 1)
    known = folding.reusable(prefix, shared, rows)
    held = folding.segments(prefix)
    assert 0 <= known <= shared
    if known:
        assert folding.end(held) <= known or not held, "its memory holds nothing else"
        assert folding.segments(rows) >= held
        if folding.segments(rows) > held:
            assert known <= folding.end(held + 1), "later rows read a memory that holds more"


@pytest.mark.parametrize(
    ("prefix", "rows", "known", "segments"), [(12, 13, 10, 0), (14, 20, 14, 1), (20, 30, 18, 1), (12, 9, 0, 0)]
)
def test_requests_run_beside_their_prefix(prefix: int, rows: int, known: int, segments: int):
    """S, W, G = 2, 3, 8. What a later segment must read first is computed again; a prompt inside the prefix as well."""
    requests = Requests({1: prefix}, Folding(sink=2, window=3, segment=8))
    requests.offer(5)
    plan = requests.begin(rows, 4, frozenset(), {1: min(prefix, rows - 1)})
    assert (plan.slot, plan.known, plan.prefix_slot) == (0, known, 1 if known else None)
    assert isinstance(plan.route, FoldingRoute) and plan.route.folded == segments


def test_tokens_that_run_again_cost_as_rows_of_a_prompt():
    plan = RequestPlan(number=0, slot=0, rows=12, tokens=9, route=Folding(sink=2, window=3, segment=8).route())
    segments = []
    while (segment := plan.next(20)) is not None:
        segments.append(Pass(0, (segment,)))
        plan.commit(Outcome(0, (1,) * segment.samples))
    assert [(each.several, each.single) for each in segments] == [(12, 0), (3, 0), *[(0, 1)] * 7]
