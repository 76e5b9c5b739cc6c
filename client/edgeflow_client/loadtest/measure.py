"""Distributions, and the rate at which a service falls behind: offered and acted frames, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeflow_client.loadtest.robots.ledger import Fate, Ledger
from edgeflow_client.loadtest.robots.plan import Ramp

FOLLOWS = 0.95  # share of the offered rate that must be acted on


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The distribution of a quantity in its own unit; all fields are NaN without values."""

    count: int
    mean: float
    deviation: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float


def distribution(values: Sequence[float] | NDArray[np.float64]) -> Distribution:
    """The distribution of some values: percentiles by linear interpolation, population standard deviation."""
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        nan = math.nan
        return Distribution(count=0, mean=nan, deviation=nan, p50=nan, p90=nan, p95=nan, p99=nan, p999=nan, max=nan)
    p50, p90, p95, p99, p999 = (float(point) for point in np.percentile(data, [50, 90, 95, 99, 99.9]))
    return Distribution(
        count=data.size,
        mean=float(data.mean()),
        deviation=float(data.std()),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        p999=p999,
        max=float(data.max()),
    )


@dataclass(frozen=True, slots=True)
class RampStep:
    """One step of a ramp; rate_hz is per robot."""

    rate_hz: float
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """Frames per second of all robots together, and the age of the actions received in the step."""

    rate_hz: float
    offered_hz: float
    acted_hz: float
    age_ms: Distribution

    @property
    def followed(self) -> bool:
        return self.acted_hz >= FOLLOWS * self.offered_hz


def step_of(pattern: Ramp, index: int, begin_ns: int) -> RampStep:
    """The index-th step of a ramp that began at begin_ns."""
    step_ns = round(pattern.step_s * 1e9)
    return RampStep(pattern.rates_hz[index], begin_ns + index * step_ns, begin_ns + (index + 1) * step_ns)


def step_result(step: RampStep, ledgers: Sequence[Ledger]) -> StepResult:
    """The result of a step: frames count as offered when they were due, as acted when their action arrived."""
    frames = [frame for ledger in ledgers for frame in ledger.frames]
    offered = sum(step.begin_ns <= frame.scheduled_ns < step.end_ns for frame in frames)
    acted = [frame for frame in frames if frame.fate is Fate.ACTED and step.begin_ns <= frame.received_ns < step.end_ns]
    seconds = (step.end_ns - step.begin_ns) / 1e9
    ages = distribution([frame.age_ns / 1e6 for frame in acted])
    return StepResult(step.rate_hz, offered / seconds, len(acted) / seconds, ages)


def knee(steps: Sequence[StepResult]) -> StepResult | None:
    """The last step before the first one that the service did not follow; None if that is the first step."""
    for index, step in enumerate(steps):
        if not step.followed:
            return steps[index - 1] if index else None
    return steps[-1] if steps else None
