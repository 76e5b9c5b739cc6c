"""Rows of one dimension of a chunk within limits on its motion.

A motion is safe if it can be brought to rest within all limits. From a safe motion there is always a next step that is
safe, the one that brakes; the step that is taken is the nearest to the one that is wanted between it and the braking
one, or the wanted one itself.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace

from edgeflow.engine.control.motion.bounds import Bounds, Motion
from edgeflow.engine.control.motion.braking import ROUNDING, braked, reach, rise

MOST_TRIES = 8  # of a step between the safe one and the wanted one
CLOSE = 2.0**-10  # of the way between them


def rows_within(wanted: Sequence[float], start: Motion, bounds: Bounds) -> tuple[list[float], bool]:
    """Positions near the wanted ones, within the bounds; False where the start could not be continued.

    The motion that was given is then forgotten as far as needed, its acceleration first. From a position outside the
    bounds the way leads back into them, within the other limits.
    """
    motion, continued = _safe(start, bounds)
    if motion.x is None and start.x is not None:
        motion, wanted = Motion(start.x), [min(max(target, bounds.low), bounds.high) for target in wanted]
        bounds = replace(bounds, low=min(bounds.low, start.x), high=max(bounds.high, start.x))
    rows = []
    for target in wanted:
        if motion.x is None:
            x = min(max(target, bounds.low), bounds.high)
            motion = Motion(x)
        else:
            v = next_step(motion, target - motion.x, bounds)
            x = target if v == target - motion.x else min(max(motion.x + v, bounds.low), bounds.high)
            motion = motion.after(x - motion.x, x)
        rows.append(x)
    return rows, continued


def steps_within(wanted: Sequence[float], start: Motion, bounds: Bounds) -> tuple[list[float], bool]:
    """The same for displacements; x of the start is the pose that they begin from, if it is known.

    Where that is outside the bounds, no step leads further out.
    """
    motion, continued = _safe(start, bounds)
    if motion.x is None and start.x is not None:
        motion = Motion(start.x)
        bounds = replace(bounds, low=min(bounds.low, start.x), high=max(bounds.high, start.x))
    rows = []
    for target in wanted:
        v = next_step(motion, target, bounds)
        motion = motion.after(v)
        rows.append(v)
    return rows, continued


def next_step(motion: Motion, wanted: float, bounds: Bounds) -> float:
    """The velocity nearest to the wanted one after which the motion is safe, if it was."""
    low, high = _interval(motion, bounds)
    v = min(max(wanted, low), high)
    if not bounds.boxed or motion.x is None:
        return v
    outside = _outside(motion.after(v), bounds)
    return v if outside <= 0.0 else _nearest_step(motion, v, outside, bounds)


def _nearest_step(motion: Motion, v: float, outside: float, bounds: Bounds) -> float:
    """The velocity nearest to v, which leads so far outside, after which the motion is safe: by false position."""
    safe = braked(motion.v, motion.a, bounds)
    near, far = 0.0, 1.0  # shares of the way from the safe step to v
    inside = _outside(motion.after(safe), bounds)
    tolerance = CLOSE * (outside - inside)
    low, high = inside, outside  # of a side that stays, half of it
    for _ in range(MOST_TRIES):
        if far - near <= CLOSE or inside >= -tolerance:
            break
        share = near + (far - near) * low / (low - high)
        found = _outside(motion.after(safe + share * (v - safe)), bounds)
        if found <= 0.0:
            near, inside, low, high = share, found, found, high / 2.0
        else:
            far, low, high = share, low / 2.0, found
    return safe + near * (v - safe)


def _outside(motion: Motion, bounds: Bounds) -> float:
    """How far a motion that brakes from now on leads outside the positions; 0 or less where it does not."""
    low, high = reach(motion, bounds)
    return max(bounds.low - low, high - bounds.high)


def is_safe(motion: Motion, bounds: Bounds, slack: float = 0.0) -> bool:
    """True when a motion is within the bounds and can be brought to rest within them. slack: for rounding."""
    v, a, share = motion.v, motion.a, 1.0 + ROUNDING
    if v is not None and abs(v) > bounds.velocity * share + slack:
        return False
    if v is not None and a is not None:
        room = bounds.velocity - math.copysign(1.0, a) * (v - a)
        most = min(bounds.acceleration, rise(max(room, 0.0), bounds.jerk))
        if abs(a) > most * share + slack:
            return False
    return not bounds.boxed or motion.x is None or _outside(motion, bounds) <= slack


def _safe(start: Motion, bounds: Bounds) -> tuple[Motion, bool]:
    """As much of a motion as is safe; False where that is not all of it."""
    for motion in (start, Motion(start.x, start.v), Motion(start.x)):
        if is_safe(motion, bounds, _slack(start)):
            return motion, motion == start
    return Motion(), start.x is None and start.v is None


def _slack(motion: Motion) -> float:
    """For the rounding of positions."""
    return 64.0 * sys.float_info.epsilon * (abs(motion.x) if motion.x is not None else 0.0)


def _interval(motion: Motion, bounds: Bounds) -> tuple[float, float]:
    """The velocities that the limits permit next, but for those on positions."""
    v, a = motion.v, motion.a
    if v is None:
        return -bounds.velocity, bounds.velocity
    up = min(bounds.acceleration, rise(max(bounds.velocity - v, 0.0), bounds.jerk))
    down = min(bounds.acceleration, rise(max(bounds.velocity + v, 0.0), bounds.jerk))
    if a is not None:
        up, down = min(up, a + bounds.jerk), min(down, bounds.jerk - a)
    low, high = max(v - down, -bounds.velocity), min(v + up, bounds.velocity)
    return min(low, high), high  # by rounding only is the one above the other
