"""When chat may run beside control."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeflow.scheduler.cost import KEPT_STEPS, LATE_SHARE, UNBOUNDED, Gaps

MS = 1_000_000


def gaps(percent: int = 100) -> Gaps:
    """A robot of 20 Hz; steps take so much of what the cost model says."""
    made = Gaps(patience_ns=250 * MS)
    made.open(1, 50 * MS)
    for _ in range(2):
        made.served(0, 100, percent)
    return made


def room(made: Gaps, *instants: int) -> list[int]:
    return [made.room_ns(instant * MS) // MS for instant in instants]


def test_without_robots_there_is_all_the_room():
    assert Gaps(1).room_ns(0) >= UNBOUNDED // 2
    assert gaps().room_ns(0) == UNBOUNDED, "a robot that sent nothing yet is not expected"


def test_room_ends_where_the_next_frame_is_expected():
    made = gaps()
    made.arrived(1, 100 * MS)
    assert room(made, 100, 130, 149, 150, 199) == [50, 20, 1, 0, 0]


def test_room_ends_also_where_a_pass_becomes_due():
    made = gaps()
    made.arrived(1, 100 * MS)
    assert made.room_ns(110 * MS, 112 * MS) == 2 * MS
    assert made.room_ns(110 * MS, 109 * MS) == 0


def test_steps_that_take_longer_than_they_should_have_less_room():
    made = gaps(percent=250)
    made.arrived(1, 0)
    assert room(made, 0) == [20]
    assert Gaps(1).room_ns(0) == UNBOUNDED // 2, "before any step is known, half"


def test_one_slow_step_is_an_outlier_and_two_are_forgotten_in_time():
    made = gaps()
    made.arrived(1, 0)
    made.served(0, 100, 1000)
    assert room(made, 0) == [50]
    made.served(0, 100, 1000)
    assert room(made, 0) == [5]
    for _ in range(KEPT_STEPS):
        made.served(0, 100, 50)
    assert room(made, 0) == [50], "and steps that are quicker change nothing"


def test_a_rejected_request_is_no_step():
    made = gaps()
    made.arrived(1, 0)
    for _ in range(2):
        made.served(0, 0, 10 * MS)
    assert room(made, 0) == [50]


def test_a_robot_that_is_a_period_late_counts_as_silent():
    made = gaps()
    made.arrived(1, 0)
    assert made.room_ns(99 * MS) == 0
    assert made.room_ns(100 * MS) == UNBOUNDED
    assert made.wake_at_ns(0) == 100 * MS


def test_a_late_frame_does_not_make_the_next_one_late():
    made = gaps()
    made.arrived(1, 0)
    made.arrived(1, 58 * MS)
    assert made.room_ns(60 * MS) == (100 - 60) * MS + 8 * MS // LATE_SHARE


def test_an_early_frame_makes_the_next_one_early():
    made = gaps()
    made.arrived(1, 0)
    made.arrived(1, 42 * MS)
    assert room(made, 60) == [32]


def test_a_frame_half_a_period_late_starts_a_new_phase():
    made = gaps()
    made.arrived(1, 0)
    made.arrived(1, 80 * MS)
    assert room(made, 80) == [50]


def test_a_declared_period_that_is_a_little_short_costs_little_room():
    made = gaps()
    for index in range(200):
        made.arrived(1, round(index * 50.3 * MS))
    last = round(199 * 50.3 * MS)
    assert made.room_ns(last) >= 46 * MS


def test_the_next_frame_of_any_robot_counts():
    made = gaps()
    made.open(2, 30 * MS)
    made.arrived(1, 0)
    made.arrived(2, 10 * MS)
    assert room(made, 20) == [20]
    made.close(2)
    assert room(made, 20) == [30]
    made.arrived(2, 25 * MS)
    assert room(made, 20) == [30], "a frame of a session that was closed"


def test_patience_runs_out_beside_robots_that_leave_no_gap():
    made = gaps()
    made.begin(0)
    assert not made.must_run(249 * MS)
    assert made.must_run(250 * MS)
    made.served(251 * MS, 1, 1)
    assert not made.must_run(300 * MS)


@given(beats=st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_the_next_frame_is_expected_between_the_earliest_and_the_latest_beat(beats: list[int]):
    made = gaps()
    for index, late in enumerate(beats):
        made.arrived(1, (50 * index + late) * MS)
    now = (50 * (len(beats) - 1) + beats[-1]) * MS
    expected = now + made.room_ns(now)
    assert min(beats) * MS <= expected - 50 * len(beats) * MS <= max(beats) * MS
