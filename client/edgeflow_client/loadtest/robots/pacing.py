"""The instants at which frames are due, in nanoseconds from a robot's start. Integers only, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from edgeflow_client.loadtest.robots.plan import Bursts, Fixed, Ramp

SECOND_NS = 1_000_000_000


def instants(pattern: Fixed | Bursts | Ramp) -> Iterator[int]:
    """Instants from 0 on, never decreasing. Each is computed from its index, so that rounding errors do not add up."""
    match pattern:
        case Fixed():
            return (round(index * SECOND_NS / pattern.rate_hz) for index in count())
        case Bursts():
            period_ns = pattern.period_s * SECOND_NS
            return (round(index // pattern.frames * period_ns) for index in count())
        case Ramp():
            return _ramp(pattern)


def _ramp(pattern: Ramp) -> Iterator[int]:
    step_ns = round(pattern.step_s * SECOND_NS)
    for step, rate_hz in enumerate(pattern.rates_hz):
        yield from range(step * step_ns, (step + 1) * step_ns, round(SECOND_NS / rate_hz))
