"""Braking in closed form is braking step by step."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgeflow.engine.control.motion import MotionBounds, MotionState, braking_rows, reach
from tests.engine.control.naive_motion import way_to_rest

JERK = 0.01
multiples = st.integers(0, 40).map(lambda count: count * JERK)
"""Motions in which a part of the braking ends exactly with a step."""
speeds = st.one_of(st.floats(0.0, 2.0), multiples)
limits = st.one_of(st.floats(0.003, 1.0), st.integers(1, 40).map(lambda count: count * JERK), st.just(math.inf))
jerks = st.one_of(st.floats(0.002, 1.0), st.just(JERK), st.just(math.inf))


@settings(max_examples=400, deadline=None)
@given(v=speeds, share=st.floats(-1, 1), whole=st.booleans(), most=limits, jerk=jerks, sign=st.sampled_from([-1, 1]))
@example(v=0.0, share=1.0, whole=True, most=0.4, jerk=0.01, sign=1)
@example(v=0.05, share=-1.0, whole=True, most=0.4, jerk=0.01, sign=-1)  # it turns back
def test_a_motion_reaches_as_far_as_its_steps(v, share, whole, most, jerk, sign):
    a = share * min(most, 0.4)
    if whole and jerk < math.inf:
        a = round(a / jerk) * jerk
    bounds = MotionBounds(velocity=4.0, acceleration=most, jerk=jerk, low=-1.0, high=1.0)
    for known in (a, None):
        motion = MotionState(0.25, sign * v, None if known is None else sign * known)
        way = way_to_rest(motion, bounds)
        low, high = reach(motion, bounds)
        tolerance = 1e-8 * max(1.0, max(way) - min(way))
        assert low == pytest.approx(min(way), rel=0, abs=tolerance)
        assert high == pytest.approx(max(way), rel=0, abs=tolerance)


@settings(max_examples=100, deadline=None)
@given(v=st.floats(0.01, 2.0), most=limits, jerk=jerks)
def test_the_rows_of_braking_are_the_steps_of_it(v, most, jerk):
    bounds = MotionBounds(acceleration=most, jerk=jerk)
    steps = len(way_to_rest(MotionState(0.0, v, 0.0), bounds)) - 1
    assert abs(braking_rows(v, bounds) - steps) <= 1  # the last one may be too small to be seen


def test_a_motion_without_a_velocity_stays_and_one_without_a_position_is_rejected():
    assert reach(MotionState(0.5), MotionBounds(low=0.0)) == (0.5, 0.5)
    with pytest.raises(ValueError, match="position"):
        reach(MotionState(), MotionBounds(low=0.0))
