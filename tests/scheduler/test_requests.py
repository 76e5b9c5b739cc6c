"""Chat requests in integers: whatever chunks are asked for, whenever passes are committed, requests stop or change."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgeflow.scheduler.folding import SlotUse
from edgeflow.scheduler.plan import Outcome, Pass
from edgeflow.scheduler.requests import Finish, RequestPlan, Requests

STOP = 7
REUSABLE = SlotUse(int)  # all of a prefix
SLOTS = 2


def outcome(number: int, token: int | None) -> Outcome[int]:
    return Outcome(number, () if token is None else (token,))


@given(
    rows=st.integers(1, 40),
    known=st.integers(0, 39),
    tokens=st.integers(0, 6),
    sizes=st.lists(st.integers(1, 50), min_size=60, max_size=60),
    late=st.integers(0, 1),
)
def test_chunks_cover_the_prompt_once_and_in_order(rows: int, known: int, tokens: int, sizes: list[int], late: int):
    """Then come the tokens, one row each, as many as are allowed."""
    known = min(known, rows - 1)
    plan = RequestPlan(number=3, slot=1, rows=rows, known=known, tokens=tokens)
    place, sampled, flying = known, 0, deque[int | None]()
    for most in sizes:
        segment = plan.next(most)
        if segment is None:
            break
        assert (segment.sequence, segment.slot, segment.start) == (3, 1, place)
        if place < rows:
            assert segment.stage == 0 and segment.length == min(most, rows - place)
        else:
            assert segment.stage == sampled > 0 and segment.length == 1
        place += segment.length
        ends = place >= rows and tokens > 0
        assert segment.samples == ends
        sampled += ends
        flying.append(100 + sampled if ends else None)
        assert plan.passes == len(flying) <= late + 1
        while len(flying) > late:
            plan.commit(outcome(3, flying.popleft()))
    assert plan.complete and place == rows + max(tokens - 1, 0) and sampled == tokens
    for token in flying:
        plan.commit(outcome(3, token))
    assert plan.verified == tokens and plan.passes == 0
    assert plan.finish is (Finish.LENGTH if tokens else None)


@given(
    tokens=st.integers(1, 8),
    given_tokens=st.lists(st.integers(5, 9), min_size=8, max_size=8),
    late=st.integers(0, 2),
)
def test_an_answer_ends_with_its_stop_token_whatever_is_in_flight(tokens: int, given_tokens: list[int], late: int):
    plan = RequestPlan(number=0, slot=0, rows=2, tokens=tokens, stop_ids=frozenset({STOP}))
    answer: list[int] = []
    flying: deque[int | None] = deque()
    while (segment := plan.next(2)) is not None:
        flying.append(given_tokens[plan.planned - 1] if segment.samples else None)
        while len(flying) > late:
            answer += plan.commit(outcome(0, flying.popleft()))
    under_way = len(flying)
    for token in flying:
        answer += plan.commit(outcome(0, token))
    allowed = given_tokens[:tokens]
    stopped = STOP in allowed
    assert answer == (allowed[: allowed.index(STOP) + 1] if stopped else allowed)
    assert plan.finish is (Finish.STOP if stopped else Finish.LENGTH)
    assert plan.verified == len(answer) and plan.passes == 0 and under_way <= late
    assert plan.next(5) is None


def test_tokens_of_one_outcome_end_at_the_stop_token_and_at_the_limit():
    plan = RequestPlan(number=0, slot=0, rows=1, tokens=3, stop_ids=frozenset({STOP}))
    plan.next(1)
    assert plan.commit(Outcome(0, (1, STOP, 2))) == (1, STOP) and plan.finish is Finish.STOP
    plan = RequestPlan(number=0, slot=0, rows=1, tokens=3, stop_ids=frozenset({STOP}))
    plan.next(1)
    assert plan.commit(Outcome(0, (1, 2, 3, STOP))) == (1, 2, 3) and plan.finish is Finish.LENGTH
    with pytest.raises(ValueError, match="at least one must be computed"):
        RequestPlan(number=0, slot=0, rows=4, known=4)


@given(
    prefixes=st.dictionaries(st.integers(1, 5), st.integers(1, 20)),
    shared=st.dictionaries(st.integers(1, 5), st.integers(0, 20)),
    rows=st.integers(1, 25),
    step=st.integers(1, 8),
)
def test_the_longest_whole_prefix_wins(prefixes: dict[int, int], shared: dict[int, int], rows: int, step: int):
    """Of its rows as many are known as another request may continue after."""
    shared = {slot: min(count, prefixes.get(slot, count), rows) for slot, count in shared.items()}
    requests = Requests(prefixes, SlotUse(lambda known: known - known % step))
    requests.offer(1)
    plan = requests.begin(rows, 2, frozenset(), shared)
    whole = [count for slot, count in prefixes.items() if shared.get(slot) == count < rows]
    longest = max(whole, default=0)
    assert plan.known == plan.place == longest - longest % step
    assert plan.slot == 0 if not whole else prefixes[plan.slot] == longest == shared[plan.slot]


class RequestsMachine(RuleBasedStateMachine):
    """Drives requests and changes of prefixes as a worker would, with passes committed up to one launch late."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = Requests({1: 4}, REUSABLE)
        self.prefixes = {1: 4}  # as the twin knows them
        self.last = 0
        self.waiting: list[int] = []
        self.running: int | None = None
        self.changing: int | None = None  # the slot whose prefix the running one computes
        self.flying: deque[tuple[Pass[int], int | None]] = deque()
        self.answers: dict[int, list[int]] = {}
        self.most: dict[int, int] = {}
        self.sampled = 0
        self.begun: list[int] = []

    @rule()
    def offer(self) -> None:
        self.last += 1
        self.waiting.append(self.last)
        self.requests.offer(self.last)

    @precondition(lambda self: self.waiting and self.running is None)
    @rule(rows=st.integers(1, 12), tokens=st.integers(1, 5), shared=st.integers(0, 12))
    def begin(self, rows: int, tokens: int, shared: int) -> None:
        assert self.requests.first == self.waiting[0]
        self.running = self.waiting.pop(0)
        counts = {slot: min(shared, count, rows) for slot, count in self.prefixes.items()}
        plan = self.requests.begin(rows, tokens, frozenset({STOP}), counts)
        whole = [count for slot, count in self.prefixes.items() if counts[slot] == count < rows]
        assert plan.number == self.running and plan.known == max(whole, default=0)
        self.begun.append(self.running)
        self.answers[self.running], self.most[self.running] = [], tokens

    @precondition(lambda self: self.waiting and self.running is None)
    @rule(rows=st.integers(0, 12), slot=st.integers(1, SLOTS))
    def begin_prefix(self, rows: int, slot: int) -> None:
        number = self.waiting.pop(0)
        self.begun.append(number)
        self.prefixes.pop(slot, None)
        self.requests.begin_prefix(slot, rows)
        if rows:
            self.running, self.changing = number, slot

    @rule(number=st.integers(0, 40))
    def drop(self, number: int) -> None:
        self.requests.drop(number)
        if number == self.running:
            self.running = self.changing = None
        elif number in self.waiting:
            self.waiting.remove(number)

    @precondition(lambda self: len(self.flying) < 2)
    @rule(most=st.integers(1, 6), token=st.integers(5, 20))
    def launch(self, most: int, token: int) -> None:
        planned = self.requests.plan(most)
        if planned is None:
            assert self.running is None or self.flying, "what runs has a pass to launch, or one to commit"
            return
        (segment,) = planned.segments
        assert segment.sequence == self.running and segment.length <= most
        assert all(planned.number > earlier.number for earlier, _ in self.flying)
        self.flying.append((planned, token if segment.samples else None))

    @precondition(lambda self: self.flying)
    @rule()
    def commit(self) -> None:
        planned, token = self.flying.popleft()
        number = planned.segments[0].sequence
        runs = number == self.running
        tokens = self.requests.commit(planned.number, [outcome(number, token)])
        if not runs:
            assert tokens == (), "of a request that is over"
            return
        assert tokens == (() if token is None else (token,))
        if self.changing is not None:
            if self.requests.running is None:
                self.prefixes[self.changing] = self.requests.prefixes[self.changing]
                self.running = self.changing = None
        else:
            self.answers[number] += tokens
            over = token == STOP or len(self.answers[number]) == self.most[number]
            assert (self.requests.running is None) == over
            self.running = None if over else number

    @invariant()
    def one_runs_and_the_first_waits(self) -> None:
        running = self.requests.running
        assert (running.number if running is not None else None) == self.running
        assert self.requests.first == (self.waiting[0] if self.waiting and self.running is None else None)

    @invariant()
    def order_and_prefixes_are_kept(self) -> None:
        assert self.begun == sorted(self.begun) and self.requests.prefixes == self.prefixes
        assert all(len(answer) <= self.most[number] for number, answer in self.answers.items())
        assert all(STOP not in answer[:-1] for answer in self.answers.values())


TestRequests = RequestsMachine.TestCase
TestRequests.settings = settings(max_examples=60, stateful_step_count=40)


def test_a_prefix_that_is_computed_replaces_the_one_before_it():
    requests = Requests({1: 4, 2: 6}, REUSABLE)
    requests.offer(1)
    requests.offer(2)
    requests.begin_prefix(1, 5)
    assert requests.prefixes == {2: 6}, "the old one is gone while the new one is computed"
    first, second = requests.plan(3), requests.plan(3)
    assert first is not None and second is not None and requests.plan(3) is None
    assert [each.segments[0].samples for each in (first, second)] == [0, 0]
    requests.commit(first.number, [Outcome(1, ())])
    assert requests.running is not None and requests.prefixes == {2: 6} and requests.first is None
    requests.commit(second.number, [Outcome(1, ())])
    assert requests.running is None and requests.prefixes == {1: 5, 2: 6} and requests.first == 2
    requests.begin_prefix(2, 0)
    assert requests.running is None and requests.prefixes == {1: 5}


def test_a_dropped_change_of_a_prefix_leaves_none():
    requests = Requests({1: 4}, REUSABLE)
    requests.offer(1)
    requests.begin_prefix(1, 5)
    planned = requests.plan(9)
    assert planned is not None
    requests.drop(1)
    requests.commit(planned.number, [Outcome(1, ())])
    assert requests.prefixes == {} and requests.running is None
