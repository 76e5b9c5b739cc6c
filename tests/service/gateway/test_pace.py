"""Rejected bodies follow each other slowly; nobody else waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeflow.service.gateway.proxy import (
    LONGEST_WAIT_S,
    MOST_CALLERS,
    REJECTED_BYTES_PER_S,
    REMEMBERED_S,
    FairTurns,
)

MB = REJECTED_BYTES_PER_S


def test_without_a_rejection_nobody_waits():
    pace = FairTurns()
    assert [pace.turn("a", 8 * MB, 0.0) for _ in range(100)] == [(0.0, 0)] * 100
    pace.rejected("a", MB, 0.0)
    assert pace.turn("b", 8 * MB, 0.0) == (0.0, 0)


def test_the_bodies_of_a_rejected_caller_follow_each_other():
    pace = FairTurns()
    pace.rejected("a", MB, 0.0)
    half = MB // 2
    assert [pace.turn("a", half, 0.5) for _ in range(3)] == [(0.5, half), (1.0, half), (1.5, half)]
    pace.rejected("a", 0, 1.0)  # paid already
    assert pace.turn("a", 0, 1.0) == (1.5, 0)


def test_a_rejection_is_forgotten():
    pace = FairTurns()
    pace.rejected("a", 1000, 0.0)
    assert pace.turn("a", MB, REMEMBERED_S - 0.1) == (0.0, MB)
    assert pace.turn("a", MB, REMEMBERED_S + 1.0) == (0.0, 0)


def test_nobody_waits_longer_than_the_limit():
    pace = FairTurns()
    pace.rejected("a", int(LONGEST_WAIT_S + 1) * MB, 0.0)
    assert pace.turn("a", 1, 0.0) is None
    assert pace.turn("a", 1, 1.0) == (LONGEST_WAIT_S, 1)


def test_the_callers_that_are_remembered_are_bounded():
    pace = FairTurns()
    for number in range(MOST_CALLERS + 1):
        pace.rejected(str(number), MB, 0.0)
    assert pace.turn("0", 1, 0.0) == (0.0, 0)
    assert pace.turn("1", 1, 0.0) == (1.0, 1)


@given(st.lists(st.tuples(st.integers(0, 4 * MB), st.floats(0, 3)), min_size=1, max_size=50))
def test_no_more_is_read_of_a_rejected_caller_than_its_pace_and_one_body(bodies: list[tuple[int, float]]):
    pace, now_s, read, longest = FairTurns(), 0.0, 0, 0
    pace.rejected("a", 0, 0.0)
    ended_s = 0.0
    for size, pause_s in bodies:
        now_s += pause_s
        if (turn := pace.turn("a", size, now_s)) is None:
            continue
        wait_s, paid = turn
        pace.rejected("a", size - paid, now_s)
        ended_s = max(ended_s, now_s + wait_s)
        read, longest = read + size, max(longest, size)
        assert read - longest <= ended_s * REJECTED_BYTES_PER_S * (1 + 1e-9) + 1
