"""95 % confidence intervals of a measured share or mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_NORMAL_95 = 1.959964
# Two-sided 95 % points of Student's t for 1 to 30 degrees of freedom.
_STUDENT_95 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval, which need not be symmetric."""

    value: float
    low: float
    high: float


def wilson(successes: int, trials: int) -> Estimate:
    """The share of successes with its Wilson interval; 0 to 1 without trials."""
    if not 0 <= successes <= trials:
        raise ValueError(f"successes are 0 to trials ({trials}), got {successes}")
    if trials == 0:
        return Estimate(math.nan, 0.0, 1.0)
    share, z = successes / trials, _NORMAL_95
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return Estimate(share, max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share)))


def mean(values: Sequence[float]) -> Estimate:
    """The mean of independent repetitions; one value alone has an unbounded interval."""
    if not values:
        raise ValueError("a mean needs at least one value")
    centre = float(np.mean(values))
    if len(values) == 1:
        return Estimate(centre, -math.inf, math.inf)
    half = _student_95(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Estimate(centre, centre - half, centre + half)


def _student_95(freedom: int) -> float:
    """Student's t for 95 %: beyond the table, the first two terms of the expansion about the normal point (error below
    2e-4).
    """
    if freedom <= len(_STUDENT_95):
        return _STUDENT_95[freedom - 1]
    z = _NORMAL_95
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom * freedom)
    return z + first + second
