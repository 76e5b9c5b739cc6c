"""The robot's clock: delays, stalls and suspensions never lock a robot out, a clock that jumps is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.service.sessions.robot_clock import MOST_REJECTED, FrameOrder, RobotClock

MS = 1_000_000
SECOND = 1000 * MS


def verdicts(frames: list[tuple[int, int]]) -> list[bool]:
    """frames: (stamp, received)."""
    clock = RobotClock()
    return [clock.admits(stamp, received) for stamp, received in frames]


def steady(count: int, begin_ms: int = 0, delay_ms: int = 5) -> list[tuple[int, int]]:
    return [((begin_ms + 50 * n) * MS, (begin_ms + 50 * n + delay_ms) * MS) for n in range(count)]


@pytest.mark.parametrize("first", [[(0, 1600 * MS)], [(0, 10**18)], [(0, 3000 * MS), (50 * MS, 3000 * MS)]])
def test_a_slow_first_frame_or_a_stamp_of_zero_rejects_nothing(first: list[tuple[int, int]]):
    begin_ms = first[-1][1] // MS
    assert all(verdicts(first + steady(100, begin_ms)))


def test_the_order_takes_the_robot_s_own_clock_after_a_buffered_picture():
    order = FrameOrder()
    order.admit(1, 0, now_ns=1600 * MS)
    for number in range(2, 200):
        order.admit(number, (1600 + number * 50) * MS, now_ns=(1605 + number * 50) * MS)


@given(st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 20_000), st.integers(0, 9)), max_size=200))
def test_delays_and_suspensions_never_reject_more_than_a_few_in_a_row(steps: list[tuple[int, int, int]]):
    frames, stamp, received = [], 0, 0
    for gap_ms, delay_ms, rarely in steps:
        stamp += gap_ms * MS
        received = max(received, stamp + (delay_ms if rarely == 0 else delay_ms % 40) * MS)
        frames.append((stamp, received))
    row = 0
    for admitted in verdicts(frames + steady(50, received // MS)):
        row = 0 if admitted else row + 1
        assert row <= MOST_REJECTED


def test_a_clock_that_jumps_is_rejected_and_then_believed():
    jumped = [(stamp + 3 * SECOND, received) for stamp, received in steady(50, 1000)]
    assert verdicts(steady(20) + jumped) == [True] * 20 + [False] * MOST_REJECTED + [True] * (50 - MOST_REJECTED)


def test_a_single_stamp_from_the_future_changes_nothing_for_the_others():
    clock = RobotClock()
    for stamp, received in steady(20):
        assert clock.admits(stamp, received)
    assert not clock.admits(60 * SECOND, SECOND)
    assert clock.admits(1000 * MS, 1007 * MS) and clock.delay_ns(1000 * MS, 1007 * MS) == 2 * MS


def test_frames_that_waited_out_a_stall_count_their_wait():
    clock = RobotClock()
    for stamp, received in steady(200):
        clock.admits(stamp, received)
    waited = [(10_000 + 50 * n) * MS for n in range(400)]
    for stamp in waited:
        assert clock.admits(stamp, 30_000 * MS)
    assert clock.delay_ns(waited[0], 30_000 * MS) == 19_995 * MS


def test_a_clock_that_stood_still_is_forgotten_within_the_window():
    """A robot that was suspended: its frames look late by the pause, but not for ever."""
    clock = RobotClock()
    for stamp, received in steady(100):
        clock.admits(stamp, received)
    delays = []
    for stamp, received in steady(300, 5_000, delay_ms=60_000):
        clock.admits(stamp, received)
        delays.append(clock.delay_ns(stamp, received))
    assert delays[0] > 50 * SECOND and delays[-1] == 0


def delays(frames: list[tuple[int, int]]) -> list[int]:
    clock = RobotClock()
    seen = []
    for stamp, received in frames:
        assert clock.admits(stamp, received)
        seen.append(clock.delay_ns(stamp, received))
    return seen


def test_a_constant_stamp_shows_no_delay():
    assert set(delays([(0, n * 100 * MS) for n in range(600)])) == {0}


@pytest.mark.parametrize("step_ns", [1, 10 * MS, 40 * MS])
def test_stamps_below_half_of_real_time_show_no_delay_after_their_first_frames(step_ns: int):
    seen = delays([(n * step_ns, n * 100 * MS + n % 3 * 20 * MS) for n in range(600)])
    assert set(seen[40:]) == {0}


def test_a_simulator_that_becomes_slow_is_held_for_a_moment_and_counts_again_afterwards():
    slow = [(1000 * MS + n * 30 * MS, 1000 * MS + n * 100 * MS) for n in range(1, 200)]
    end_stamp, end_received = slow[-1]
    again = [(end_stamp + n * 50 * MS, end_received + n * 50 * MS) for n in range(1, 400)]
    late = (again[-1][0] + 50 * MS, again[-1][1] + 700 * MS)
    seen = delays([*steady(20, delay_ms=0), *slow, *again, late])
    assert max(seen[20:]) > SECOND and set(seen[150:219]) == {0} and seen[-1] == 650 * MS


def test_a_camera_that_hangs_shows_its_delay():
    seen = delays([*steady(100), *((99 * 50 * MS, 4955 * MS + n * 50 * MS) for n in range(1, 100))])
    assert seen[-1] == 99 * 50 * MS


def test_a_network_that_stalls_again_and_again_shows_its_delays():
    frames = [(n * 50 * MS, (n // 20 * 20 + 20) * 50 * MS) for n in range(400)]
    assert max(delays(frames)[200:]) > 900 * MS
