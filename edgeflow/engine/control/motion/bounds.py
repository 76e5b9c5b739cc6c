"""Limits on the motion of one dimension, and its present motion.

Everything is per step: v is the difference of two positions, a of two v, jerk of two a.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


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
