"""Limits on the motion of one dimension of a chunk: velocity, acceleration, jerk and an interval of positions.

Everything is per step: v is the difference of two positions, a of two v, jerk of two a. A motion is safe if it can be
brought to rest within all limits. From a safe motion there is always a next step that is safe, the one that brakes; the
step that is taken is the nearest to the one that is wanted between it and the braking one, or the wanted one itself.

Without an interval of positions this is exact: an acceleration a at velocity v ends in a velocity of
v + (n + 1) a - n (n + 1) / 2 jerk at most, over the n steps in which it falls to 0.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

MOST_BRAKING = 2000  # steps in which a motion must come to rest
HALVINGS = 8
ROUNDING = 1e-9  # of a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of a dimension, per step; inf = none. low, high: of its position."""

    velocity: float = math.inf
    acceleration: float = math.inf
    jerk: float = math.inf
    low: float = -math.inf
    high: float = math.inf

    @property
    def boxed(self) -> bool:
        return self.low > -math.inf or self.high < math.inf


@dataclass(frozen=True, slots=True)
class Motion:
    """The last position, velocity and acceleration, as far as they are known. An acceleration needs a velocity."""

    x: float | None = None
    v: float | None = None
    a: float | None = None

    @classmethod
    def of(cls, positions: Sequence[float]) -> Motion:
        """The motion after these positions, the oldest first."""
        x = positions[-1] if positions else None
        v = positions[-1] - positions[-2] if len(positions) > 1 else None
        a = v - (positions[-2] - positions[-3]) if v is not None and len(positions) > 2 else None
        return cls(x, v, a)

    def after(self, v: float, x: float | None = None) -> Motion:
        """The motion after a step of v, to x where that is given."""
        if x is None:
            x = None if self.x is None else self.x + v
        return Motion(x, v, None if self.v is None else v - self.v)


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
            x = target if v == target - motion.x else motion.x + v
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
    if not bounds.boxed or at_rest_within(motion.after(v), bounds):
        return v
    safe = braked(motion.v, motion.a, bounds)
    near, far = 0.0, 1.0  # shares of the way from the safe step to v
    for _ in range(HALVINGS):
        middle = (near + far) / 2.0
        if at_rest_within(motion.after(safe + middle * (v - safe)), bounds):
            near = middle
        else:
            far = middle
    return safe + near * (v - safe)


def braked(v: float | None, a: float | None, bounds: Bounds) -> float:
    """The velocity after a step that brakes as much as the limits allow, and comes to rest without turning back."""
    if v is None:
        return 0.0
    sign = 1.0 if v > 0.0 or (v == 0.0 and a is not None and a > 0.0) else -1.0
    speed, jerk = sign * v, bounds.jerk
    change = -min(speed if speed <= jerk else _rise(speed, jerk), bounds.acceleration)
    if a is not None:
        change = min(max(change, sign * a - jerk), sign * a + jerk)
    return 0.0 if change == -speed else v + sign * change


def at_rest_within(motion: Motion, bounds: Bounds, slack: float = 0.0) -> bool:
    """True when a motion that brakes from now on stays within the positions. slack: of these."""
    x, v, a = motion.x, motion.v, motion.a
    if x is None:
        return True
    low, high, jerk = bounds.low - slack, bounds.high + slack, bounds.jerk * (1.0 + ROUNDING)
    still = ROUNDING * min(bounds.velocity, bounds.acceleration, bounds.jerk)
    for _ in range(MOST_BRAKING):
        if not low <= x <= high:
            return False
        if v is None or (-still <= v <= still and (a is None or -jerk <= a <= jerk)):
            return True
        after = braked(v, a, bounds)
        x, v, a = x + after, after, after - v
    return False


def is_safe(motion: Motion, bounds: Bounds, slack: float = 0.0) -> bool:
    """True when a motion is within the bounds and can be brought to rest within them. slack: for rounding."""
    v, a, share = motion.v, motion.a, 1.0 + ROUNDING
    if v is not None and abs(v) > bounds.velocity * share + slack:
        return False
    if v is not None and a is not None:
        room = bounds.velocity - math.copysign(1.0, a) * (v - a)
        most = min(bounds.acceleration, _rise(max(room, 0.0), bounds.jerk))
        if abs(a) > most * share + slack:
            return False
    return not bounds.boxed or at_rest_within(motion, bounds, slack)


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
    up = min(bounds.acceleration, _rise(max(bounds.velocity - v, 0.0), bounds.jerk))
    down = min(bounds.acceleration, _rise(max(bounds.velocity + v, 0.0), bounds.jerk))
    if a is not None:
        up, down = min(up, a + bounds.jerk), min(down, bounds.jerk - a)
    low, high = max(v - down, -bounds.velocity), min(v + up, bounds.velocity)
    return min(low, high), high  # by rounding only is the one above the other


def _rise(room: float, jerk: float) -> float:
    """The largest acceleration after which the velocity rises by `room` at most, its first step included."""
    if math.isinf(room) or math.isinf(jerk):
        return room
    fewest = max(math.floor(math.sqrt(2.0 * room / jerk)), 1)
    return min(room / steps + jerk * (steps - 1) / 2.0 for steps in (fewest, fewest + 1))
