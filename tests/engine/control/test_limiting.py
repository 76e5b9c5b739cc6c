"""Rows within limits: each the nearest from which the motion can be brought to rest, found in few tries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.engine.control import motion as limiting
from edgeflow.engine.control.motion import (
    MotionBounds,
    MotionState,
    braked,
    braking_rows,
    next_step,
    rows_within,
    steps_within,
)
from tests.engine.control.naive_motion import nearest_step, rests_within

ROWS, STEP_S = 50, 0.02
BOX = MotionBounds(velocity=1.0 * STEP_S, acceleration=2.0 * STEP_S**2, jerk=10.0 * STEP_S**3, low=-0.3, high=0.3)
SLOW = MotionBounds(velocity=1e-3, acceleration=1e-6, jerk=1e-8, low=-10.0, high=10.0)
chunks = st.one_of(
    st.lists(st.floats(-1, 1), min_size=ROWS, max_size=ROWS),
    st.tuples(st.floats(-0.5, 0.5), st.floats(-0.05, 0.05)).map(
        lambda line: [line[0] + line[1] * row for row in range(ROWS)]
    ),
)


def within(line: np.ndarray, bounds: MotionBounds) -> bool:
    """True if the rows after the first three keep the limits."""
    sizes = (bounds.velocity, bounds.acceleration, bounds.jerk)
    moves = (np.abs(np.diff(line, n=order)[3 - order :]) for order in (1, 2, 3))
    kept = all(found.max() <= size * (1 + 1e-6) + 1e-12 for found, size in zip(moves, sizes, strict=True))
    return kept and bool(bounds.low <= line[3:].min() and line[3:].max() <= bounds.high)


@settings(max_examples=60, deadline=None)
@given(wanted=chunks, start=st.floats(-0.3, 0.3), jerk=st.sampled_from([BOX.jerk, 0.3 * BOX.jerk, np.inf]))
def test_every_row_keeps_all_limits_and_the_motion_can_be_stopped_after_it(wanted, start, jerk):
    bounds = replace(BOX, jerk=jerk)
    rest = MotionState.of([start] * 3)
    rows, continued = rows_within(wanted, rest, bounds)
    line = np.array([start] * 3 + rows)
    assert continued and within(line, bounds)
    wide = replace(bounds, low=bounds.low - 1e-9, high=bounds.high + 1e-9)
    assert all(rests_within(MotionState.of(line[: end + 1].tolist()), wide) for end in range(3, len(line), 7))
    steps, continued = steps_within(np.diff([start, *wanted]).tolist(), MotionState(start, 0.0, 0.0), bounds)
    assert continued and within(start + np.cumsum([0.0, 0.0, 0.0, *steps]), wide)
    again, continued = rows_within(rows, rest, bounds)
    assert continued and np.abs(np.subtract(again, rows)).max() <= 1e-9


@settings(max_examples=30, deadline=None)
@given(wanted=chunks)
def test_rows_that_keep_the_limits_stay_as_they_are(wanted):
    gentle = (np.cumsum(np.cumsum(wanted)) * 0.3 * BOX.jerk).tolist()
    rows, continued = rows_within(gentle, MotionState.of([gentle[0]] * 3), BOX)
    assert continued and rows == gentle


@settings(max_examples=40, deadline=None)
@given(wanted=chunks)
def test_a_limited_step_is_as_near_to_the_wanted_one_as_possible(wanted):
    motion = MotionState.of([0.0] * 3)
    for target in wanted:
        low, high = limiting._interval(motion, BOX)
        v = min(max(target - motion.x, low), high)
        safe, nearest = braked(motion.v, motion.a, BOX), nearest_step(motion, v, BOX)
        found = next_step(motion, target - motion.x, BOX)
        assert abs(found - nearest) <= abs(v - safe) / 64 + 1e-12
        motion = motion.after(found)


@pytest.mark.parametrize(("bounds", "braking"), [(BOX, (30, 40)), (SLOW, (1000, 1200))])
def test_the_tries_of_a_chunk_do_not_grow_with_the_way_to_rest(monkeypatch, bounds: MotionBounds, braking):
    assert braking[0] <= braking_rows(bounds.velocity, bounds) <= braking[1]
    tries = 0

    def counted(*args):
        nonlocal tries
        tries += 1
        return reach(*args)

    reach = limiting.reach
    monkeypatch.setattr(limiting, "reach", counted)
    for position in np.linspace(0.9 * bounds.low, bounds.high, 8):
        start = MotionState.of([position - 2 * bounds.velocity, position - bounds.velocity, position])
        tries = 0
        rows_within([9.0 * bounds.high] * ROWS, start, bounds)
        assert 0 < tries <= 6 * ROWS + 3
