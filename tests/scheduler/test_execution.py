"""How answers are executed: what is chosen by which latency, and which frames of a session are answered."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.contract import Pace, Speculation
from edgeflow.scheduler.execution import (
    LOST_NS,
    SETTLED_ANSWERS,
    AnswerExecution,
    ExecutionChoice,
    ExecutionFacts,
    SessionExecution,
)
from edgeflow_client.timeline import PlayLog, Timeline
from edgeflow_client.types import ActionSchema, Execution

MS = 1_000_000
PERIOD_NS = 50 * MS
CHUNK = ExecutionFacts(horizon=20, step_ns=50 * MS, bridged_ns=500 * MS, continues=True, slows=True)
SINGLE = ExecutionFacts(horizon=1, step_ns=100 * MS, bridged_ns=200 * MS, continues=False, slows=False)
STEPS = ActionSchema(
    names=("x", "grip"), units=("m", "fraction"), low=(-1.0, 0.0), high=(1.0, 1.0), relative=(True, False)
)


def chosen(facts: ExecutionFacts, delay_ms: int, gap_ms: int = 50) -> tuple[str, int]:
    choice = ExecutionChoice(Execution.AUTO, facts)
    choice.begin(delay_ms * MS, gap_ms * MS)
    return choice.now.execution.value, choice.now.rate_percent


@pytest.mark.parametrize(
    ("delay_ms", "gap_ms", "expected"),
    [
        (500, 50, ("continue", 100)),
        (501, 50, ("slow", 75)),
        (667, 50, ("slow", 50)),
        (1000, 50, ("slow", 50)),
        (1001, 50, ("rest", 100)),
        (400, 600, ("continue", 100)),  # the chunk lasts until the next answer, just
        (400, 601, ("slow", 75)),
        (400, 1601, ("rest", 100)),
    ],
)
def test_the_service_chooses_by_what_is_bridged_and_by_how_long_the_chunk_lasts(delay_ms, gap_ms, expected):
    assert chosen(CHUNK, delay_ms, gap_ms) == expected
    fixed = replace(CHUNK, slows=False, continues=False)
    execution, _ = chosen(fixed, delay_ms, gap_ms)
    assert execution == ("fresh" if expected[0] == "continue" else "rest")


@pytest.mark.parametrize("asked", [each for each in Execution if each is not Execution.AUTO])
def test_what_was_asked_for_is_never_changed(asked: Execution):
    choice = ExecutionChoice(asked, CHUNK)
    choice.begin(5000 * MS, 0)
    assert not any(choice.observe(each * 500 * MS, 0) for each in range(20))
    assert (choice.now.execution, choice.now.rate_percent) == (asked, 75 if asked is Execution.SLOW else 100)


def test_one_late_answer_changes_nothing_and_a_return_takes_many_with_a_margin():
    choice = ExecutionChoice(Execution.AUTO, CHUNK)
    choice.begin(300 * MS, 50 * MS)
    assert not choice.observe(700 * MS, 50 * MS) and not choice.observe(300 * MS, 50 * MS)
    assert not choice.observe(2000 * MS, 50 * MS) and choice.observe(2000 * MS, 50 * MS)
    assert choice.now.execution is Execution.REST and "answers take 2000 ms" in choice.now.reason
    assert not any(choice.observe(900 * MS, 50 * MS) for _ in range(50))  # fits, but not well
    for _ in range(2):  # an answer between counts from the start
        assert not any(choice.observe(390 * MS, 50 * MS) for _ in range(SETTLED_ANSWERS - 1))
        assert not choice.observe(950 * MS, 50 * MS)
    assert [choice.observe(390 * MS, 50 * MS) for _ in range(SETTLED_ANSWERS)].index(True) == SETTLED_ANSWERS - 1
    assert choice.now.execution is Execution.CONTINUE


def test_rows_are_slowed_down_only_if_neither_policy_nor_units_count_on_their_rate():
    schema = replace(STEPS, horizon=20, step_ms=50.0)
    assert ExecutionFacts.of(schema, 10, continues=True, timed=False) == CHUNK
    assert not ExecutionFacts.of(schema, 10, continues=True, timed=True).slows
    assert not ExecutionFacts.of(replace(schema, units=("m/s", "fraction")), 10, continues=True, timed=False).slows


@pytest.mark.parametrize(
    ("schema", "bridged_ms"),
    [
        (replace(STEPS, control_rate_hz=10.0), 200),
        (replace(STEPS, control_rate_hz=2.0), 500),
        (STEPS, None),
        (replace(STEPS, control_rate_hz=10.0, relative=(False, False)), None),
        (replace(STEPS, whole_way=True), None),
    ],
    ids=["steps", "long steps", "of an unknown rate", "absolute", "the whole way"],
)
def test_a_single_action_is_good_for_its_step_with_look_ahead(schema: ActionSchema, bridged_ms: int | None):
    facts = ExecutionFacts.of(schema, 0, continues=False, timed=False)
    assert facts.bridged_ns == (None if bridged_ms is None else bridged_ms * MS)
    assert chosen(facts, 200, 10_000) == ("fresh", 100)
    assert chosen(facts, 600) == (("fresh", 100) if bridged_ms is None else ("rest", 100))


@pytest.mark.parametrize(
    ("pace", "pass_ms", "expected"),
    [
        (Pace(0, Speculation()), 151, "rest"),
        (Pace(0, Speculation(tolerance_bins=1)), 151, "rest"),
        (Pace(0, Speculation()), 150, "fresh"),
        (Pace(0, Speculation(max_passes=1)), 151, "fresh"),
        (Pace(1), 151, "fresh"),
    ],
)
def test_a_robot_rests_where_drafts_are_verified_in_long_passes(pace: Pace, pass_ms: int, expected: str):
    whole = ExecutionFacts.of(replace(STEPS, whole_way=True), 0, continues=False, timed=False)
    assert chosen(whole.at(pace, pass_ms * MS), 2000) == (expected, 100)
    assert chosen(SINGLE.at(pace, pass_ms * MS), 150) == ("fresh", 100), "a step says itself how long it is good for"


class Served:
    """A session's execution, with frames answered at once."""

    def __init__(self, asked: Execution | None, facts: ExecutionFacts = CHUNK, delay_ms: int = 200) -> None:
        self.execution = SessionExecution(asked, facts, period_ns=PERIOD_NS)
        self.delay_ns = delay_ms * MS
        self.execution.begin(self.delay_ns, PERIOD_NS)
        self.seq = 0

    def may(self, *, resting: bool, arrived: int = 0, busy: bool = False, now_ms: int = 0) -> bool:
        return self.execution.may_answer(resting=resting, arrived=arrived, now_ns=now_ms * MS, busy=busy)

    def answer(self, *, resting: bool) -> AnswerExecution | None:
        self.seq += 1
        return self.execution.answer(self.seq, resting=resting, delay_ns=self.delay_ns, gap_ns=PERIOD_NS)


def test_a_robot_that_stands_still_is_answered_for_one_frame_and_then_for_all():
    served = Served(Execution.AUTO)
    assert not served.may(resting=False) and not served.may(resting=True, busy=True) and served.may(resting=True)
    how = served.answer(resting=True)
    assert (how.execution, how.from_arrival, how.rows) == (Execution.CONTINUE, True, 0)
    assert how.valid_ns == served.delay_ns + 2 * PERIOD_NS  # a frame of its motion, and that one's answer
    assert not served.may(resting=True)
    assert served.may(resting=False, arrived=1) and served.may(resting=False, arrived=1, busy=True)
    how = served.answer(resting=False)
    assert (how.from_arrival, how.valid_ns) == (False, 2 * PERIOD_NS)


def test_a_robot_that_rests_is_answered_once_its_rows_are_executed():
    served = Served(Execution.REST, delay_ms=600)
    assert served.may(resting=True)
    how = served.answer(resting=True)
    assert (how.rows, how.from_arrival) == (10, True)  # as long as the wait, and at most half of the chunk
    assert how.valid_ns == (10 * 50 + 600 + 2 * 50) * MS
    assert not served.may(resting=False, arrived=1)
    assert served.may(resting=True, arrived=1)
    assert Served(Execution.REST, delay_ms=10).answer(resting=True).rows == 8  # no less than RESTED_NS
    assert Served(Execution.REST, SINGLE).answer(resting=True).rows == 1


def test_an_answer_that_is_lost_is_not_awaited_for_ever():
    served = Served(Execution.AUTO)
    served.may(resting=True)
    served.answer(resting=True)
    assert not served.may(resting=True, now_ms=60_000)  # it has not been sent
    served.execution.sent(1, 60_000 * MS)
    assert not served.may(resting=True, now_ms=60_000 + LOST_NS // MS - 1)
    assert not served.may(resting=False, now_ms=60_000 + LOST_NS // MS)
    assert served.may(resting=True, now_ms=60_000 + LOST_NS // MS)


@pytest.mark.parametrize("end", ["left", "halt"])
def test_a_frame_that_left_or_a_hold_ends_the_wait(end: str):
    served = Served(Execution.AUTO)
    served.may(resting=True)
    served.answer(resting=True)
    served.execution.left(7)
    assert not served.may(resting=True)
    if end == "left":
        served.execution.left(1)
    else:
        served.execution.halt()
    assert not served.may(resting=False) and served.may(resting=True)


def test_a_change_of_execution_leads_to_a_rest():
    served = Served(Execution.AUTO)
    served.may(resting=True)
    served.answer(resting=True)
    assert served.may(resting=False, arrived=1)
    served.delay_ns = 900 * MS
    assert [served.execution.observe(served.delay_ns, PERIOD_NS) for _ in range(2)] == [False, True]
    last = served.answer(resting=False)
    assert (last.execution, last.rate_percent, last.from_arrival) == (Execution.CONTINUE, 100, False)
    assert last.rows == 20  # those that pass until it arrives, and half of a chunk
    assert not served.may(resting=False, arrived=1) and not served.may(resting=False, arrived=2)
    assert served.may(resting=True, arrived=2)
    first = served.answer(resting=True)
    assert (first.execution, first.rate_percent, first.from_arrival) == (Execution.SLOW, 50, True)


def test_a_client_that_knows_nothing_of_this_is_answered_for_every_frame():
    served = Served(None)
    assert served.may(resting=True) and served.answer(resting=True) is None
    assert served.may(resting=True, busy=True) and not served.execution.observe(9000 * MS, 0)
    assert served.execution.expected(9000 * MS, 0) is None


def test_single_actions_wait_for_each_other_only_in_rest():
    served = Served(Execution.AUTO, SINGLE, delay_ms=100)
    assert served.may(resting=True) and served.answer(resting=True).rows == 0
    assert served.may(resting=True, busy=True)
    resting = Served(Execution.AUTO, SINGLE, delay_ms=300)
    assert resting.may(resting=True) and resting.answer(resting=True).from_arrival
    assert not resting.may(resting=True) and resting.may(resting=True, arrived=1)


@dataclass(frozen=True, slots=True)
class Flying:
    """An answer on its way."""

    seq: int
    captured_ns: int
    sent_ns: int
    arrives_ns: int | None
    """None = it is lost."""
    how: AnswerExecution


class SimulatedLoop:
    """A robot that takes a frame every period, and answers that take what a test draws."""

    def __init__(self, asked: Execution, facts: ExecutionFacts) -> None:
        self.facts = facts
        self.session = SessionExecution(asked, facts, period_ns=PERIOD_NS)
        self.session.begin(100 * MS, PERIOD_NS)
        self.plays = PlayLog()
        self.now_ns = self.seq = self.arrived = self.last = 0
        self.sent_ns = -LOST_NS
        self.working: list[Flying] = []
        self.flying: list[Flying] = []
        self.answered: list[AnswerExecution] = []

    def frame(self, latency_ms: int, *, lost: bool, hold: bool) -> None:
        """A frame one period later, whose answer takes so long, half of it on the way back."""
        self.now_ns += PERIOD_NS
        self._deliver()
        if hold:
            self.plays.end(self.now_ns)
            self.session.halt()
        self.seq += 1
        resting, busy = self.plays.rests_at(self.now_ns), bool(self.working)
        may = self.session.may_answer(resting=resting, arrived=self.arrived, now_ns=self.now_ns, busy=busy)
        if resting and not busy and not self.flying:
            known = self.arrived >= self.last or self.now_ns - self.sent_ns >= LOST_NS
            assert may or not known, "the robot would stand still for ever"
        if not may:
            return
        latency_ns = latency_ms * MS
        self.session.observe(latency_ns, PERIOD_NS)
        how = self.session.answer(self.seq, resting=resting, delay_ns=latency_ns, gap_ns=PERIOD_NS)
        assert how is not None and (resting or not how.from_arrival), "rows from the arrival for a moving robot"
        before = self.answered[-1] if self.answered else None
        if before is not None and self.facts.horizon > 1:
            same = (before.execution, before.rate_percent) == (how.execution, how.rate_percent)
            assert same or how.from_arrival, "a change of execution in motion"
        self.answered.append(how)
        self.last, sent_ns = self.seq, self.now_ns + latency_ns // 2
        self.working.append(Flying(self.seq, self.now_ns, sent_ns, None if lost else self.now_ns + latency_ns, how))

    def _deliver(self) -> None:
        for each in [each for each in self.working if each.sent_ns <= self.now_ns]:
            self.working.remove(each)
            self.session.sent(each.seq, each.sent_ns)
            self.sent_ns = max(self.sent_ns, each.sent_ns)
            if each.arrives_ns is not None:
                self.flying.append(each)
        due = [each for each in self.flying if each.arrives_ns is not None and each.arrives_ns <= self.now_ns]
        for each in sorted(due, key=lambda flying: flying.arrives_ns or 0):
            self.flying.remove(each)
            if each.seq > self.arrived:
                self._play(each, each.arrives_ns or 0)

    def _play(self, answer: Flying, now_ns: int) -> None:
        self.arrived = answer.seq
        how, facts = answer.how, self.facts
        start_ns = now_ns if how.from_arrival and self.plays.rests_at(now_ns) else answer.captured_ns
        if facts.horizon == 1:
            timeline, over_ns = Timeline(now_ns), now_ns + facts.step_ns
        else:
            timeline = Timeline(start_ns, facts.step_ns * 100 // how.rate_percent, how.rows or facts.horizon)
            over_ns = timeline.over_ns
        self.plays.begin(answer.seq, timeline, now_ns, now_ns + 3600 * 1000 * MS, over_ns)


@given(
    st.sampled_from(Execution),
    st.sampled_from([CHUNK, replace(CHUNK, slows=False), SINGLE]),
    st.lists(st.tuples(st.integers(1, 1500), st.integers(0, 19), st.integers(0, 19)), min_size=30, max_size=100),
)
def test_no_robot_waits_for_ever_nor_changes_its_execution_in_motion(asked, facts, frames):
    loop = SimulatedLoop(asked, facts)
    for latency_ms, lost, hold in frames:
        loop.frame(latency_ms, lost=lost == 1, hold=hold == 1)
    answered = len(loop.answered)
    for _ in range(150):  # 7.5 s: the longest answer, a chunk at half its rate, and an answer that is lost
        loop.frame(50, lost=False, hold=False)
    assert len(loop.answered) > answered
