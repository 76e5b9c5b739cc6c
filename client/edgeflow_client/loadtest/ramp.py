"""Finds the rate at which a service falls behind: offered against acted rate, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeflow_client.loadtest.measure import Distribution, distribution
from edgeflow_client.loadtest.robots.ledger import Fate, Ledger
from edgeflow_client.loadtest.robots.plan import Ramp

FOLLOWS = 0.95  # share of the offered rate that must be acted on


@dataclass(frozen=True, slots=True)
class Step:
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


def step_of(pattern: Ramp, index: int, begin_ns: int) -> Step:
    """The index-th step of a ramp that began at begin_ns."""
    step_ns = round(pattern.step_s * 1e9)
    return Step(pattern.rates_hz[index], begin_ns + index * step_ns, begin_ns + (index + 1) * step_ns)


def step_result(step: Step, ledgers: Sequence[Ledger]) -> StepResult:
    """The result of a step: frames count as offered when they were due, as acted when their action arrived."""
    frames = [frame for ledger in ledgers for frame in ledger.frames]
    offered = sum(step.begin_ns <= frame.scheduled_ns < step.end_ns for frame in frames)
    acted = [frame for frame in frames if frame.fate is Fate.ACTED and step.begin_ns <= frame.received_ns < step.end_ns]
    seconds = (step.end_ns - step.begin_ns) / 1e9
    ages = distribution([frame.age_ns / 1e6 for frame in acted])
    return StepResult(step.rate_hz, offered / seconds, len(acted) / seconds, ages)


def follows(step: Step, ledgers: Sequence[Ledger]) -> bool:
    """True when the acted rate kept up with the offered one."""
    return step_result(step, ledgers).followed


def knee(steps: Sequence[StepResult]) -> StepResult | None:
    """The last step before the first that was not followed; None when already the first was not."""
    for index, step in enumerate(steps):
        if not step.followed:
            return steps[index - 1] if index else None
    return steps[-1] if steps else None
