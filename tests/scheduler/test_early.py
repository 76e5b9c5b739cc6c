"""Frames before their turn: what they cost robots that keep their rate, what they get, and whose turn it is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.contract import PROMPT, Pace, PassTimes, Stage, StageProgram
from edgeflow.scheduler.plan import Leaving
from edgeflow.scheduler.turns import BURST
from tests.scheduler.early_robots import NEVER, EarlySender, Simulated, simulate

MS = 1_000_000
SECOND = 1000 * MS
TOKENS = StageProgram.tokens(5)
STEPS = StageProgram((Stage(rows=PROMPT), Stage(rows=50, repeats=4, advances=False)))
PERIOD_NS = 50 * MS
SOME = PassTimes(
    stages=5,
    prefill_ns=4 * MS,
    two_prefills_ns=6 * MS,
    packed_ns=5 * MS,
    decode_ns=2 * MS,
    decodes_ns=3 * MS,
)
PROGRAMS = st.sampled_from([TOKENS, STEPS])
TIMES = st.builds(
    PassTimes,
    stages=st.just(5),
    prefill_ns=st.integers(2 * MS, 5 * MS),
    two_prefills_ns=st.integers(5 * MS, 9 * MS),
    packed_ns=st.integers(5 * MS, 6 * MS),
    decode_ns=st.integers(MS, 2 * MS),
    decodes_ns=st.integers(2 * MS, 3 * MS),
    launch_ns=st.sampled_from([0, MS // 2]),
)
EARLY = st.lists(
    st.builds(
        EarlySender,
        period_ns=st.just(NEVER),
        after_ns=st.integers(0, 20 * MS),
        begins_ns=st.integers(0, PERIOD_NS),
        pace=st.sampled_from([Pace(1), Pace(2), Pace(5)]),
        waits_ns=st.sampled_from([0, 30 * MS]),
    ),
    min_size=1,
    max_size=3,
)


def whole(times: PassTimes, program: StageProgram, robots: Sequence[EarlySender] = ()) -> PassTimes:
    """The times, with passes in which a frame takes all of its steps if all robots are serial."""
    serial = program is STEPS and all(robot.pace == Pace(1) for robot in robots)
    return replace(times, whole_ns=10 * MS) if serial else times


def longest_ns(times: PassTimes) -> int:
    return max(times.pass_ns(4, 16), times.whole_ns)


@given(times=TIMES, program=PROGRAMS, early=EARLY, offsets=st.lists(st.integers(0, PERIOD_NS), min_size=1, max_size=2))
def test_robots_that_keep_their_rate_do_not_notice_early_frames(
    times: PassTimes, program: StageProgram, early: list[EarlySender], offsets: list[int]
):
    """From their third frame on: the second is the first to be expected."""
    times = whole(times, program, early)
    honest = [EarlySender(period_ns=PERIOD_NS, arrivals=range(begin, SECOND, PERIOD_NS)) for begin in offsets]
    alone = simulate(times, honest, SECOND // 4, program=program)
    beside = simulate(times, [*honest, *early], SECOND // 4, program=program)
    for robot, begin in enumerate(offsets):
        expected, found = alone.latencies(robot), beside.latencies(robot)
        later = [at for at in expected if begin + 2 * PERIOD_NS <= at < SECOND // 5]
        assert later and [found[at] for at in later] == [expected[at] for at in later]


@given(
    times=TIMES,
    program=PROGRAMS,
    early=EARLY,
    jitter=st.lists(st.integers(0, 15 * MS), min_size=5, max_size=5),
    seed=st.integers(0, 99),
)
def test_an_early_frame_delays_a_due_one_by_the_passes_in_flight_at_most(
    times: PassTimes, program: StageProgram, early: list[EarlySender], jitter: list[int], seed: int
):
    """A robot whose frames come at any time around their turn, and passes that are slower than they should."""
    times = whole(times, program, early)
    arrivals = [30 * MS + index * PERIOD_NS + late for index, late in enumerate(jitter)]
    dice = random.Random(seed)
    percent = [dice.choice([100, 100, 100, 150]) for _ in range(50)]
    honest = EarlySender(period_ns=PERIOD_NS, arrivals=arrivals)
    alone = simulate(times, [honest], SECOND // 3, program=program).latencies(0)
    beside = simulate(times, [honest, *early], SECOND // 3, program=program, percent=percent).latencies(0)
    own_ns = sum(times.pass_ns(*shape) for shape in [(1, 0), *[(0, 1)] * 4]) + times.whole_ns
    most_ns = (1 + times.launch_ahead) * longest_ns(times) * 3 // 2 + own_ns // 2 + 5 * times.launch_ns
    assert len(beside) == len(arrivals)
    assert all(beside[at] <= alone[at] + most_ns for at in arrivals)


@pytest.mark.parametrize(("robots", "declared_ms"), [(1, 50), (2, 50), (2, 1000), (4, 50)])
@pytest.mark.parametrize("program", [TOKENS, STEPS])
@pytest.mark.parametrize("slow", [100, 300])
def test_the_device_is_not_idle_while_an_early_frame_waits(
    robots: int, declared_ms: int, program: StageProgram, slow: int
):
    """Closed-loop robots get what they would get by declaring the truth, also where one pass in 20 is slow."""
    times = whole(SOME, program)
    senders = [
        EarlySender(period_ns=declared_ms * MS, after_ns=2 * MS, begins_ns=7 * MS * each) for each in range(robots)
    ]
    percent = [slow, *[100] * 19]
    found, truth = (
        simulate(times, senders, SECOND, program=program, turns=turns, percent=percent) for turns in (True, False)
    )
    assert actions(found) >= 0.95 * actions(truth)
    assert typical_ns(found) <= typical_ns(truth) + 3 * MS
    assert found.idle_ns <= 0.01 * SECOND
    counts = [len(found.answered[robot]) for robot in range(robots)]
    assert max(counts) - min(counts) <= 0.1 * max(counts)


def actions(found: Simulated) -> int:
    return sum(map(len, found.answered.values()))


def typical_ns(found: Simulated) -> int:
    ages = sorted(ended - arrived for each in found.answered.values() for arrived, ended in each)
    return ages[len(ages) // 2]


@given(times=TIMES, program=PROGRAMS, budget=st.sampled_from([10, 1024]), think=st.integers(0, 5 * MS))
def test_early_robots_are_served_in_turn(times: PassTimes, program: StageProgram, budget: int, think: int):
    """Also where only one of them fits into a pass, and beside one that keeps its rate."""
    early = [EarlySender(period_ns=NEVER, after_ns=think, begins_ns=3 * MS * robot) for robot in range(3)]
    honest = EarlySender(period_ns=2 * PERIOD_NS, arrivals=range(0, SECOND // 2, 2 * PERIOD_NS))
    found = simulate(times, [honest, *early], SECOND // 2, program=program, row_budget=budget)
    counts = [len(found.answered[robot]) for robot in (1, 2, 3)]
    assert min(counts) >= 3 and max(counts) - min(counts) <= 0.34 * max(counts)
    assert len(found.answered[0]) >= 4


@given(
    times=TIMES,
    program=PROGRAMS,
    arrivals=st.lists(st.integers(0, SECOND // 2), min_size=5, max_size=80).map(sorted),
    pace=st.sampled_from([Pace(1), Pace(2), Pace(5)]),
    waits_ns=st.sampled_from([0, 20 * MS]),
    period_ns=st.sampled_from([NEVER, 200 * MS]),
)
def test_the_newest_early_frame_runs_and_each_frame_leaves_once(
    times: PassTimes,
    program: StageProgram,
    arrivals: list[int],
    pace: Pace,
    waits_ns: int,
    period_ns: int,
):
    robot = EarlySender(period_ns=period_ns, arrivals=arrivals, pace=pace, waits_ns=waits_ns)
    honest = EarlySender(period_ns=PERIOD_NS, arrivals=range(0, SECOND // 2, PERIOD_NS))
    found = simulate(times, [honest, robot], 3 * SECOND, program=program)
    assert all(begun == newest for begun, newest in found.begun)
    left = [departure.frame for departure in found.left]
    assert len(left) == len(set(left)) == len(arrivals) + 10
    for arrived_ns, ended_ns in found.answered[1]:
        assert not waits_ns or period_ns != NEVER or ended_ns - arrived_ns <= waits_ns + 10 * longest_ns(times)


@given(times=TIMES, program=PROGRAMS, fast_ns=st.integers(5 * MS, 40 * MS))
def test_a_robot_gets_what_it_declared_where_there_are_no_gaps_and_no_more(
    times: PassTimes, program: StageProgram, fast_ns: int
):
    """Beside one that is always due, whose frames take all of the time that others leave."""
    busy = EarlySender(period_ns=4 * MS, arrivals=range(0, SECOND, 4 * MS))
    cheat = EarlySender(period_ns=100 * MS, arrivals=range(0, SECOND, fast_ns))
    found = simulate(times, [busy, cheat], SECOND, program=program)
    ended = [ended_ns for _, ended_ns in found.answered[1]]
    assert 7 <= len(ended) <= 10 + BURST + 1
    assert max(later - sooner for sooner, later in pairwise(ended)) <= 100 * MS + fast_ns + 20 * longest_ns(times)


def test_an_early_frame_that_finds_no_gap_leaves_when_it_has_waited_long_enough():
    busy = EarlySender(period_ns=MS, after_ns=0)
    early = EarlySender(period_ns=NEVER, after_ns=0, waits_ns=30 * MS)
    found = simulate(SOME, [busy, early], 200 * MS, program=TOKENS)
    left = [departure.reason for departure in found.left if departure.frame.session == 1]
    assert 5 <= len(left) <= 7 and set(left) == {Leaving.EARLY}


def test_frames_that_rest_give_their_turn_to_a_newer_one():
    """An early frame has begun when a robot that is always due comes; its turn goes to the newest frame."""
    busy = EarlySender(period_ns=MS, after_ns=0, begins_ns=66 * MS)
    cheat = EarlySender(period_ns=200 * MS, arrivals=[0, 12 * MS, 24 * MS, 60 * MS, 100 * MS, 150 * MS])
    found = simulate(SOME, [busy, cheat], SECOND, program=TOKENS)
    reasons = {departure.frame.seq: departure.reason for departure in found.left if departure.frame.session == 1}
    arrived = [arrived_ns // MS for arrived_ns, _ in found.answered[1]]
    assert arrived == [0, 12, 24, 150], "the one of 60 ms had begun"
    assert sorted(reason.name for reason in reasons.values()) == ["DONE"] * 4 + ["SUPERSEDED"] * 2
