"""When chat may run beside control."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeflow.scheduler.gaps import UNBOUNDED, Gaps

MS = 1_000_000


def gaps() -> Gaps:
    made = Gaps(patience_ns=250 * MS)
    made.open(1, 50 * MS)
    return made


def test_without_robots_there_is_all_the_room():
    assert Gaps(1).room_ns(0) == UNBOUNDED
    assert gaps().room_ns(0) == UNBOUNDED, "a robot that sent nothing yet is not expected"


def test_room_ends_where_the_next_frame_is_expected():
    made = gaps()
    made.arrived(1, 100 * MS)
    assert [made.room_ns(now * MS) for now in (100, 130, 149, 150, 199)] == [50 * MS, 20 * MS, 1 * MS, 0, 0]


def test_a_robot_that_is_a_period_late_counts_as_silent():
    made = gaps()
    made.arrived(1, 0)
    assert made.room_ns(99 * MS) == 0
    assert made.room_ns(100 * MS) == UNBOUNDED
    assert made.wake_at_ns() == 100 * MS


def test_the_next_frame_of_any_robot_counts():
    made = gaps()
    made.open(2, 30 * MS)
    made.arrived(1, 0)
    made.arrived(2, 10 * MS)
    assert made.room_ns(20 * MS) == 20 * MS
    made.close(2)
    assert made.room_ns(20 * MS) == 30 * MS


def test_patience_runs_out_beside_robots_that_leave_no_gap():
    made = gaps()
    made.served(0)
    assert not made.must_run(249 * MS)
    assert made.must_run(250 * MS)
    made.served(251 * MS)
    assert not made.must_run(300 * MS)


@given(frames=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40)), max_size=30), later=st.integers(0, 200))
def test_room_never_reaches_beyond_a_frame_that_comes_on_time(frames: list[tuple[int, int]], later: int):
    made = Gaps(1)
    for session in (1, 2, 3):
        made.open(session, 10 * session)
    now, last = 0, {}
    for session, wait in frames:
        now += wait
        made.arrived(session, now)
        last[session] = now
    now += later
    expected = [arrived + 10 * session for session, arrived in last.items() if arrived + 20 * session > now]
    assert made.room_ns(now) == min((max(instant - now, 0) for instant in expected), default=UNBOUNDED)
