"""Braking to rest within limits on acceleration and jerk: the next step, and in closed form the way to rest.

Everything is per step (motion/bounds.py). A motion brakes in up to four parts. Where it slows down so quickly that it
cannot stop doing so in time, it first turns back. Then its acceleration falls by the jerk in each step, until it slows
down as much as it may; it does so for a while; and at last it slows down less in each step, by the jerk, until it
rests. The number of steps of each part, and the way that they lead, follow from sums of the first integers and of their
squares.
"""

from __future__ import annotations

import math

from edgeflow.engine.control.motion.bounds import Bounds, Motion

ROUNDING = 1e-9  # of a limit, or of a step


def rise(room: float, jerk: float) -> float:
    """The largest acceleration after which the velocity rises by `room` at most, its first step included.

    An acceleration a ends in n a - n (n - 1) / 2 jerk at most, over the n steps in which it falls to 0.
    """
    return _last_steps(room, jerk)[0]


def braked(v: float | None, a: float | None, bounds: Bounds) -> float:
    """The velocity after a step that brakes as much as the limits allow, and comes to rest without turning back."""
    if v is None:
        return 0.0
    sign = _direction(v, a)
    speed, jerk = sign * v, bounds.jerk
    change = -min(speed if speed <= jerk else rise(speed, jerk), bounds.acceleration)
    if a is not None:
        change = min(max(change, sign * a - jerk), sign * a + jerk)
    return 0.0 if change == -speed else v + sign * change


def reach(motion: Motion, bounds: Bounds) -> tuple[float, float]:
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


def braking_rows(speed: float, bounds: Bounds) -> int:
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


def _way(speed: float, a: float | None, bounds: Bounds) -> tuple[float, int]:
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


def _falling(speed: float, a: float, bounds: Bounds) -> int:
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
