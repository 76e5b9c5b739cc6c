"""Naive twins of edgeflow/engine/control/motion.py: braking step by step, and a step found by halving."""

from __future__ import annotations

from edgeflow.engine.control.motion import MotionBounds, MotionState, braked

MOST_STEPS = 100_000
HALVINGS = 40


def way_to_rest(motion: MotionState, bounds: MotionBounds) -> list[float]:
    """All positions of a motion that brakes from now on, the present one first."""
    x, v, a = motion.x, motion.v, motion.a
    still = 1e-9 * min(bounds.velocity, bounds.acceleration, bounds.jerk)
    jerk = bounds.jerk * (1 + 1e-9)
    positions = [x]
    while v is not None and not (abs(v) <= still and (a is None or abs(a) <= jerk)):
        after = braked(v, a, bounds)
        x, v, a = x + after, after, after - v
        positions.append(x)
        assert len(positions) < MOST_STEPS
    return positions


def rests_within(motion: MotionState, bounds: MotionBounds) -> bool:
    positions = way_to_rest(motion, bounds)
    return bounds.low <= min(positions) and max(positions) <= bounds.high


def nearest_step(motion: MotionState, v: float, bounds: MotionBounds) -> float:
    """The velocity nearest to v, which the other limits permit, from which the motion can be brought to rest."""
    if rests_within(motion.after(v), bounds):
        return v
    safe, near, far = braked(motion.v, motion.a, bounds), 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (near + far) / 2.0
        if rests_within(motion.after(safe + middle * (v - safe)), bounds):
            near = middle
        else:
            far = middle
    return safe + near * (v - safe)
