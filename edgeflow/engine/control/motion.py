"""Limits on the motion of one dimension: rows within them, and the braking distance in closed form.

Everything is per step: v is the difference of two positions, a of two v, jerk of two a.

A motion is safe if it can be brought to rest within all limits. From a safe motion there is always a next step that is
safe, the one that brakes; the step that is taken is the nearest to the one that is wanted between it and the braking
one, or the wanted one itself.

A motion brakes in up to four parts. Where it slows down so quickly that it cannot stop doing so in time, it first turns
back. Then its acceleration falls by the jerk in each step, until it slows down as much as it may; it does so for a
while; and at last it slows down less in each step, by the jerk, until it rests. The number of steps of each part, and
the way that they lead, follow from sums of the first integers and of their squares.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class MotionBounds:
    """The limits of a dimension, per step; inf = none."""

    velocity: float = math.inf
    acceleration: float = math.inf
    jerk: float = math.inf
    low: float = -math.inf
    """The lowest position."""
    high: float = math.inf
    """The highest position."""

    @property
    def boxed(self) -> bool:
        return self.low > -math.inf or self.high < math.inf


@dataclass(frozen=True, slots=True)
class MotionState:
    """The last position, velocity and acceleration, as far as they are known. An acceleration needs a velocity."""

    x: float | None = None
    v: float | None = None
    a: float | None = None

    @classmethod
    def of(cls, positions: Sequence[float]) -> MotionState:
        """The motion after these positions, the oldest first."""
        x = positions[-1] if positions else None
        v = positions[-1] - positions[-2] if len(positions) > 1 else None
        a = v - (positions[-2] - positions[-3]) if v is not None and len(positions) > 2 else None
        return cls(x, v, a)

    def after(self, v: float, x: float | None = None) -> MotionState:
        """The motion after a step of v, to x where that is given."""
        if x is None:
            x = None if self.x is None else self.x + v
        return MotionState(x, v, None if self.v is None else v - self.v)


ROUNDING = 1e-9  # of a limit, or of a step


def rise(room: float, jerk: float) -> float:
    """The largest acceleration after which the velocity rises by `room` at most, its first step included.

    An acceleration a ends in n a - n (n - 1) / 2 jerk at most, over the n steps in which it falls to 0.
    """
    return _last_steps(room, jerk)[0]


def braked(v: float | None, a: float | None, bounds: MotionBounds) -> float:
    """The velocity after a step that brakes as much as the limits allow, and comes to rest without turning back."""
    if v is None:
        return 0.0
    sign = _direction(v, a)
    speed, jerk = sign * v, bounds.jerk
    change = -min(speed if speed <= jerk else rise(speed, jerk), bounds.acceleration)
    if a is not None:
        change = min(max(change, sign * a - jerk), sign * a + jerk)
    return 0.0 if change == -speed else v + sign * change


def reach(motion: MotionState, bounds: MotionBounds) -> tuple[float, float]:
    """The lowest and the highest position of a motion that brakes from now on, the present one included.

    ValueError where its position is not known.
    """
    x, v, a = motion.x, motion.v, motion.a
    if x is None:
        raise ValueError("a motion without a position reaches none")
    if v is None:
        return x, x
    sign = _direction(v, a)
    speed, ahead = sign * v, 0.0
    if a is not None:
        a *= sign
        if a < -bounds.jerk and -min(bounds.acceleration, rise(speed, bounds.jerk)) - a > bounds.jerk * (1 + ROUNDING):
            ahead, speed, a = _turned(speed, a, bounds.jerk)
            turn = x + sign * ahead
            end = turn - sign * (speed + _way(speed, a, bounds)[0])
            return min(x, turn, end), max(x, turn, end)
    end = x + sign * _way(speed, a, bounds)[0]
    return (x, end) if x <= end else (end, x)


def braking_rows(speed: float, bounds: MotionBounds) -> int:
    """The steps in which a motion of constant velocity comes to rest."""
    return _way(speed, 0.0, bounds)[1]


def _direction(v: float, a: float | None) -> float:
    return 1.0 if v > 0.0 or (v == 0.0 and a is not None and a > 0.0) else -1.0


def _turned(speed: float, a: float, jerk: float) -> tuple[float, float, float]:
    """The way ahead until a motion turns back, and its speed and acceleration then, both in the new direction.

    a: below -jerk; it rises by the jerk in each step.
    """
    half = a + jerk / 2.0
    root = math.sqrt(max(half * half - 2.0 * jerk * speed, 0.0))
    steps = max(math.ceil((-half - root) / jerk - ROUNDING), 1)
    before = steps - 1
    ahead = before * (speed + (before + 1) * (a / 2.0 + jerk * (before + 2) / 6.0))
    return ahead, max(-(speed + steps * (a + jerk * (steps + 1) / 2.0)), 0.0), -(a + steps * jerk)


def _way(speed: float, a: float | None, bounds: MotionBounds) -> tuple[float, int]:
    """The way in which a motion that does not turn back comes to rest, and the steps."""
    jerk, most = bounds.jerk, bounds.acceleration
    way, falling, holding = 0.0, 0, 0
    if a is not None and jerk < math.inf:
        falling = _falling(speed, a, bounds)
        way = falling * (speed + (falling + 1) * (a / 2.0 - jerk * (falling + 2) / 6.0))
        speed = max(speed + falling * (a - jerk * (falling + 1) / 2.0), 0.0)
    if speed > most:
        holding = max(math.ceil((speed - _shed(most, jerk)) / most - ROUNDING), 0)
        way += holding * (speed - most * (holding + 1) / 2.0)
        speed -= holding * most
    first, last = _last_steps(speed, jerk)
    if last > 1:
        way += last * (speed - (last + 1) * (first / 2.0 - jerk * (last - 1) / 6.0))
    return way, falling + holding + last


def _falling(speed: float, a: float, bounds: MotionBounds) -> int:
    """The steps in which an acceleration falls by the jerk until it is that of a motion that brakes.

    The deceleration d of the next one is the limit, or all that the speed there allows. The root takes the velocity
    that d sheds as d² / 2 jerk + d / 2, which is up to jerk / 8 too little: that may be one step too many.
    """
    jerk = bounds.jerk
    least = math.sqrt(max(jerk * speed + a * (a - jerk) / 2.0, 0.0))
    steps = math.ceil((min(least, bounds.acceleration) + a) / jerk - ROUNDING) - 1
    if steps > 0 and least < bounds.acceleration + jerk:
        before = steps - 1
        there = max(speed + before * (a - jerk * (before + 1) / 2.0), 0.0)
        if steps * jerk - a >= min(rise(there, jerk), bounds.acceleration) * (1.0 - ROUNDING):
            return before
    return max(steps, 0)


def _shed(deceleration: float, jerk: float) -> float:
    """The velocity that a deceleration sheds while it falls to 0 by the jerk, its first step included."""
    steps = math.floor(deceleration / jerk) + 1 if jerk < math.inf else 1
    return steps * deceleration - steps * (steps - 1) / 2.0 * jerk if steps > 1 else deceleration


def _last_steps(room: float, jerk: float) -> tuple[float, int]:
    """The acceleration of `rise`, and the steps in which it falls to 0."""
    if room <= jerk or math.isinf(room):
        return room, 1
    fewer = max(math.floor(math.sqrt(2.0 * room / jerk)), 1)
    more = fewer + 1
    first, second = room / fewer + jerk * (fewer - 1) / 2.0, room / more + jerk * fewer / 2.0
    return (first, fewer) if first <= second else (second, more)


MOST_TRIES = 8  # of a step between the safe one and the wanted one
CLOSE = 2.0**-10  # of the way between them


def rows_within(wanted: Sequence[float], start: MotionState, bounds: MotionBounds) -> tuple[list[float], bool]:
    """Positions near the wanted ones, within the bounds; False where the start could not be continued.

    The motion that was given is then forgotten as far as needed, its acceleration first. From a position outside the
    bounds the way leads back into them, within the other limits.
    """
    motion, continued = _safe(start, bounds)
    if motion.x is None and start.x is not None:
        motion, wanted = MotionState(start.x), [min(max(target, bounds.low), bounds.high) for target in wanted]
        bounds = replace(bounds, low=min(bounds.low, start.x), high=max(bounds.high, start.x))
    rows = []
    for target in wanted:
        if motion.x is None:
            x = min(max(target, bounds.low), bounds.high)
            motion = MotionState(x)
        else:
            v = next_step(motion, target - motion.x, bounds)
            x = target if v == target - motion.x else min(max(motion.x + v, bounds.low), bounds.high)
            motion = motion.after(x - motion.x, x)
        rows.append(x)
    return rows, continued


def steps_within(wanted: Sequence[float], start: MotionState, bounds: MotionBounds) -> tuple[list[float], bool]:
    """The same for displacements; x of the start is the pose that they begin from, if it is known.

    Where that is outside the bounds, no step leads further out.
    """
    motion, continued = _safe(start, bounds)
    if motion.x is None and start.x is not None:
        motion = MotionState(start.x)
        bounds = replace(bounds, low=min(bounds.low, start.x), high=max(bounds.high, start.x))
    rows = []
    for target in wanted:
        v = next_step(motion, target, bounds)
        motion = motion.after(v)
        rows.append(v)
    return rows, continued


def next_step(motion: MotionState, wanted: float, bounds: MotionBounds) -> float:
    """The velocity nearest to the wanted one after which the motion is safe, if it was."""
    low, high = _interval(motion, bounds)
    v = min(max(wanted, low), high)
    if not bounds.boxed or motion.x is None:
        return v
    outside = _outside(motion.after(v), bounds)
    return v if outside <= 0.0 else _nearest_step(motion, v, outside, bounds)


def _nearest_step(motion: MotionState, v: float, outside: float, bounds: MotionBounds) -> float:
    """The velocity nearest to v, which leads so far outside, after which the motion is safe: by false position."""
    safe = braked(motion.v, motion.a, bounds)
    near, far = 0.0, 1.0  # shares of the way from the safe step to v
    inside = _outside(motion.after(safe), bounds)
    tolerance = CLOSE * (outside - inside)
    low, high = inside, outside  # the Illinois rule: the value of a side that stays is halved
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


def _outside(motion: MotionState, bounds: MotionBounds) -> float:
    """How far a motion that brakes from now on leads outside the positions; 0 or less where it does not."""
    low, high = reach(motion, bounds)
    return max(bounds.low - low, high - bounds.high)


def is_safe(motion: MotionState, bounds: MotionBounds, slack: float = 0.0) -> bool:
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


def _safe(start: MotionState, bounds: MotionBounds) -> tuple[MotionState, bool]:
    """As much of a motion as is safe; False where that is not all of it."""
    for motion in (start, MotionState(start.x, start.v), MotionState(start.x)):
        if is_safe(motion, bounds, _slack(start)):
            return motion, motion == start
    return MotionState(), start.x is None and start.v is None


def _slack(motion: MotionState) -> float:
    """The tolerance for the rounding of positions."""
    return 64.0 * sys.float_info.epsilon * (abs(motion.x) if motion.x is not None else 0.0)


def _interval(motion: MotionState, bounds: MotionBounds) -> tuple[float, float]:
    """The velocities that the limits permit next, but for those on positions."""
    v, a = motion.v, motion.a
    if v is None:
        return -bounds.velocity, bounds.velocity
    up = min(bounds.acceleration, rise(max(bounds.velocity - v, 0.0), bounds.jerk))
    down = min(bounds.acceleration, rise(max(bounds.velocity + v, 0.0), bounds.jerk))
    if a is not None:
        up, down = min(up, a + bounds.jerk), min(down, bounds.jerk - a)
    low, high = max(v - down, -bounds.velocity), min(v + up, bounds.velocity)
    return min(low, high), high  # only rounding puts low above high
