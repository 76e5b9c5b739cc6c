"""Requests whose passes verify drafts: whatever is accepted and found, however passes are cut and committed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.scheduler.drafting import Acceptance, DraftCounts, DraftRule, Drafts
from edgeflow.scheduler.folding import Folding, Route, SlotUse
from edgeflow.scheduler.plan import DraftForm, Outcome, Segment
from edgeflow.scheduler.requests import Finish, RequestPlan, Requests
from tests.scheduler.test_folding import SIZES, PositionList

STOP = 7
RULES = st.builds(
    DraftRule,
    form=st.sampled_from(list(DraftForm)),
    rows=st.integers(1, 9),
    places=st.just(0),
).map(lambda rule: rule if rule.form is not DraftForm.NONE else replace(rule, rows=1))


@dataclass
class DraftingDevice:
    """What runs the passes of one request, in order: how many tokens there are, and what each pass gave.

    truth: the tokens of the answer. given: passes that are launched and not committed.
    """

    plan: RequestPlan
    truth: list[int]
    data: st.DataObject
    slot: PositionList | None = None
    known: int = 0
    found: int = 0
    given: deque[tuple[Segment[int], Outcome[int]]] = field(default_factory=deque)
    counts: DraftCounts = field(default_factory=DraftCounts)

    def run(self, segment: Segment[int]) -> None:
        plan, rule = self.plan, self.plan.rule
        uncertain = any(each.drafts for each, _ in self.given)
        assert segment.certain == (not uncertain), "a start is exact where no pass of several rows is in flight"
        assert segment.start + segment.length <= rule.places, "no row leaves the slot"
        assert (segment.form is rule.form and segment.length <= rule.rows) or not segment.drafts
        tokens: list[int] = []
        held = 0
        if segment.samples:
            newest = plan.rows + self.known - 1
            ends = segment.start + segment.folded + segment.length - segment.drafts - 1
            assert ends == newest if segment.certain else ends >= newest
            assert segment.samples == 1 + segment.drafts
            accepted = self.data.draw(st.integers(0, segment.drafts))
            tokens = self.truth[self.known : self.known + 1 + accepted]
            held = segment.drafts - accepted
        if self.slot is not None:
            self._held(segment, held)
        self.known += len(tokens)
        chain = rule.form is DraftForm.CHAIN
        self.found = self.data.draw(st.integers(0, rule.rows - 1)) if chain and tokens else rule.rows - 1
        self.given.append((segment, Outcome(0, tuple(tokens), found=self.found)))

    def _held(self, segment: Segment[int], wrong: int) -> None:
        """The folds are those of the known tokens, also of every draft that might be accepted."""
        slot = self.slot
        assert slot is not None
        slot.run(segment)
        if segment.samples:
            known = self.plan.rows + self.known
            for accepted in range(segment.drafts + 1):
                assert len(slot.memory) == slot.folding.segments(known + accepted) * slot.folding.segment
        if wrong:
            del slot.held[-wrong:]

    def commit(self) -> tuple[int, ...]:
        segment, outcome = self.given.popleft()
        first = not self.plan.verified
        told = self.plan.commit(outcome)
        if outcome.tokens and not first:
            self.counts.drafted += segment.drafts
            self.counts.accepted += len(outcome.tokens) - 1
            self.counts.drafts += segment.drafts > 0
            self.counts.plain += not segment.drafts
        return told


def answered(device: DraftingDevice, most: st.SearchStrategy[int], late: int) -> list[int]:
    """Run a request to its end with up to `late` passes in flight beside the one that is launched."""
    plan, answer = device.plan, list[int]()
    while plan.finish is None:
        rows = device.data.draw(most)
        committed = plan.verified + len([each for each, _ in device.given if each.samples])
        segment = plan.next(rows)
        if segment is not None:
            assert segment.length <= rows
            assert plan.rows_left or segment.samples == 0 or committed < plan.tokens, "a pass that is needed"
            device.run(segment)
        else:
            assert device.given, "what is not at its end has a pass to launch, or one to commit"
            assert plan.complete or (plan.is_blocked and any(each.drafts for each, _ in device.given))
        while plan.finish is None and len(device.given) > (late if segment is not None else 0):
            answer += device.commit()
    assert plan.next(5) is None and plan.complete
    assert plan.drafts.counts == device.counts
    return answer


def expected(truth: list[int], tokens: int) -> tuple[list[int], Finish]:
    allowed = truth[:tokens]
    if STOP in allowed:
        return allowed[: allowed.index(STOP) + 1], Finish.STOP
    return allowed, Finish.LENGTH


TRUTH = st.lists(st.integers(STOP, 40), min_size=70, max_size=70)


@settings(max_examples=150)
@given(RULES, st.integers(1, 12), st.integers(1, 30), st.integers(0, 40), TRUTH, st.integers(0, 2), st.data())
def test_an_answer_is_the_true_one(
    rule: DraftRule, rows: int, tokens: int, spare: int, truth: list[int], late: int, data: st.DataObject
):
    """In a slot with room for the answer and little more."""
    rule = replace(rule, places=rows + tokens - 1 + spare)
    plan = RequestPlan(number=0, slot=0, rows=rows, tokens=tokens, stop_ids=frozenset({STOP}), rule=rule)
    device = DraftingDevice(plan, truth, data)
    found = answered(device, st.integers(1, 12), late)
    assert (found, plan.finish) == expected(truth, tokens)
    assert plan.verified == len(found)
    if rule.form is DraftForm.CHAIN:
        assert device.known <= tokens, "no draft behind the last token"


@settings(max_examples=150)
@given(SIZES, RULES, st.integers(1, 50), st.integers(1, 40), TRUTH, st.integers(0, 2), st.data())
def test_no_draft_crosses_a_fold(
    folding: Folding, rule: DraftRule, rows: int, tokens: int, truth: list[int], late: int, data: st.DataObject
):
    """The folds of an answer are where they are without drafts, and a slot needs no more places."""
    rule = replace(rule, places=folding.threshold)
    plan = RequestPlan(
        number=0, slot=0, rows=rows, tokens=tokens, stop_ids=frozenset({STOP}), rule=rule, route=folding.route()
    )
    device = DraftingDevice(plan, truth, data, PositionList(folding))
    found = answered(device, st.integers(1, 12), late)
    assert (found, plan.finish) == expected(truth, tokens)
    assert plan.folds == folding.segments(rows + len(found) - 1)


def chain(rows: int = 5, places: int = 100) -> DraftRule:
    return DraftRule(form=DraftForm.CHAIN, rows=rows, places=places)


def test_a_verification_computed_by_hand():
    plan = RequestPlan(number=0, slot=0, rows=3, tokens=20, rule=chain())
    first = plan.next(9)
    assert first is not None and (first.start, first.length, first.samples, first.drafts) == (0, 3, 1, 0)
    plan.commit(Outcome(0, (10,), found=3))
    second = plan.next(9)
    assert second is not None and second.certain
    assert (second.start, second.length, second.samples, second.drafts, second.stage) == (3, 4, 4, 3, 1)
    third = plan.next(3)
    assert third is not None and not third.certain
    assert (third.start, third.length, third.drafts, third.stage) == (7, 3, 2, 2)
    assert plan.commit(Outcome(0, (11, 12), found=0)) == (11, 12)
    assert plan.commit(Outcome(0, (13,), found=0)) == (13,)
    fourth = plan.next(9)
    assert fourth is not None and (fourth.start, fourth.length, fourth.certain) == (6, 1, True), "nothing is found"
    assert plan.drafts.counts == DraftCounts(drafted=5, accepted=1, drafts=2, plain=0)


def test_a_plan_waits_where_all_that_is_left_may_be_in_flight():
    plan = RequestPlan(number=0, slot=0, rows=1, tokens=5, rule=chain())
    plan.next(1)
    plan.commit(Outcome(0, (1,), found=4))
    segment = plan.next(9)
    assert segment is not None and segment.drafts == 3, "four tokens are left"
    assert plan.is_blocked and not plan.complete and plan.next(9) is None
    plan.commit(Outcome(0, (2,), found=4))
    assert not plan.is_blocked and plan.next(9) is not None


def test_tokens_after_a_stop_token_are_left_out():
    tree = DraftRule(form=DraftForm.TREE, rows=9, places=100)
    for stop_ids, tokens, answer, finish in (
        (frozenset({STOP}), 9, (1, STOP), Finish.STOP),
        (frozenset[int](), 4, (1, STOP, 2), Finish.LENGTH),
    ):
        plan = RequestPlan(number=0, slot=0, rows=1, tokens=tokens, stop_ids=stop_ids, rule=tree)
        plan.next(1)
        assert plan.commit(Outcome(0, (3,), found=8)) == (3,)
        segment = plan.next(9)
        assert segment is not None and segment.drafts == 8, "of a tree all rows are verified, however few are needed"
        assert plan.next(9) is None or tokens == 9
        assert plan.commit(Outcome(0, (1, STOP, 2, 4), found=8)) == answer
        assert plan.finish is finish and plan.verified == 1 + len(answer)


def test_a_dropped_request_takes_its_verification_with_it():
    requests = Requests({}, SlotUse(int))
    requests.offer(1)
    requests.offer(2)
    requests.begin(2, 9, frozenset(), {}, chain())
    prompt = requests.plan(9)
    assert prompt is not None
    assert requests.commit(prompt.number, [Outcome(1, (5,), found=4)]) == (5,)
    verification = requests.plan(9)
    assert verification is not None and verification.segments[0].drafts == 4
    requests.drop(1)
    plan = requests.begin(3, 9, frozenset(), {}, chain())
    following = requests.plan(9)
    assert following is not None and following.segments[0].certain
    assert requests.commit(verification.number, [Outcome(1, (6, 7, 8), found=4)]) == ()
    assert (plan.place, plan.verified, plan.passes) == (3, 0, 1)
    assert requests.commit(following.number, [Outcome(2, (9,), found=1)]) == (9,)


@pytest.mark.parametrize("prefix", [1, 2, 6])
def test_the_last_row_of_a_prefix_runs_again(prefix: int):
    """For a drafter with features; the prefix itself stays whole."""
    requests = Requests({1: prefix}, SlotUse(int, again=1), chain())
    requests.offer(1)
    plan = requests.begin(9, 3, frozenset(), {1: prefix}, chain())
    assert plan.known == plan.place == prefix - 1 and plan.slot == 1
    assert plan.prefix_slot == (1 if prefix > 1 else None)
    segment = requests.plan(20)
    assert segment is not None and segment.segments[0].length == 9 - plan.known
    assert requests.prefixes == {1: prefix}
    assert type(SlotUse(int, again=1).route()) is Route


@given(SIZES, st.integers(1, 60), st.integers(1, 60), st.integers(1, 90))
def test_one_row_less_of_a_folded_prefix(folding: Folding, prefix: int, shared: int, rows: int):
    """What may be reused with a row again is never more than one row less, and never after a fold that is undone."""
    shared = min(shared, prefix, rows - 1)
    again = replace(folding, again=1)
    known = again.reusable(prefix, shared, rows)
    assert known == folding.reusable(prefix, max(shared - 1, 0), rows) <= max(shared - 1, 0)
    assert again.copied(known, 50) == folding.copied(known, 50) and again.shares_slots == folding.shares_slots
    assert again.unfolded(50) == folding.unfolded(50) and again.compressed(3) == folding.compressed(3)
    assert again.name(rows) == folding.name(rows)


@given(st.integers(1, 64), st.integers(0, 63), st.integers(0, 32), st.integers(0, 2000))
def test_the_number_of_drafts_maximises_tokens_per_time(judged: int, right: int, most: int, row_permille: int):
    """The twin computes in fractions; where two numbers of drafts are about as good, either will do."""
    right = min(max(right, 1), judged)
    share, cost = Fraction(right, judged), Fraction(row_permille, 1000)
    rates = [sum(share**at for at in range(drafts + 1)) / (1 + drafts * cost) for drafts in range(most + 1)]
    found = Acceptance(right, judged).worthwhile(most, row_permille)
    assert rates[found] >= max(rates) * Fraction(98, 100)
    assert row_permille or right < judged or found == most, "rows that cost nothing, and are right, are all run"


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 1 << 17), st.data())
def test_the_time_of_a_row_lies_on_a_line(start: int, end: int, places: int, data: st.DataObject):
    rule = DraftRule(places=places, row_permille=start, row_growth=end - start)
    place = data.draw(st.integers(0, places - 1))
    assert 0 <= start + (end - start) * Fraction(place, places) - rule.permille_at(place) < 1
    assert min(start, end) <= rule.permille_at(place) <= max(start, end)


def test_fewer_drafts_are_verified_where_rows_take_longer():
    rule = replace(chain(9, places=1000), row_permille=10, row_growth=700)
    drafts = Drafts(rule=rule, verified=1, found=8)
    counts = [drafts.next_count(place, 100, 100, 100) for place in (10, 500, 980)]
    assert counts == sorted(counts, reverse=True) and counts[0] >= 3 and counts[-1] == 0
    tree = Drafts(rule=replace(rule, form=DraftForm.TREE, deepest=3), verified=1, found=8)
    assert [tree.next_count(place, 100, 100, 100) for place in (10, 980)] == [8, 0]


@pytest.mark.parametrize(("accepted", "row_permille", "least", "most"), [(8, 100, 8, 8), (0, 100, 0, 1), (0, 5, 1, 3)])
def test_drafts_follow_what_was_accepted(accepted: int, row_permille: int, least: int, most: int):
    acceptance = Acceptance()
    for _ in range(100):
        chosen = acceptance.worthwhile(8, row_permille)
        acceptance.observe(chosen, min(accepted, chosen))
        assert 0 < acceptance.right <= acceptance.judged <= 64
    assert least <= acceptance.worthwhile(8, row_permille) <= most


def test_drafts_are_tried_again():
    """After wrong ones a request does without; it tries again some passes later."""
    acceptance, tries = Acceptance(), []
    for _ in range(200):
        chosen = acceptance.worthwhile(8, 300)
        acceptance.observe(chosen, 0)
        tries.append(chosen)
    assert tries[0] > 0 and tries.count(0) >= 80 and any(tries[-20:])


@pytest.mark.parametrize(("row_permille", "accepted", "expected"), [(10, 3, True), (10, 0, False), (0, 0, True)])
def test_a_tree_runs_whole_or_not_at_all(row_permille: int, accepted: int, expected: bool):
    """59 drafts of which 8 can be right, each row a hundredth of a pass."""
    acceptance = Acceptance()
    for _ in range(60):
        acceptance.observe(8, accepted)
    assert acceptance.pays(8, 59, row_permille) is expected
