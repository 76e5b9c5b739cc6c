"""Thresholds that a run has to meet, for automated checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgeflow_client.loadtest.chat import Beside
from edgeflow_client.loadtest.summary import Summary


@dataclass(frozen=True, slots=True)
class Check:
    """One threshold and the measured value. A value that does not exist (NaN) never meets it."""

    name: str
    limit: float
    measured: float
    unit: str

    @property
    def met(self) -> bool:
        if self.name.startswith("min-"):
            return self.measured >= self.limit
        return self.measured <= self.limit

    @property
    def text(self) -> str:
        relation = "at least" if self.name.startswith("min-") else "at most"
        verdict = "met" if self.met else "NOT MET"
        return f"{self.name}: {self.measured:.4g}{self.unit}, {relation} {self.limit:.4g}{self.unit}: {verdict}"


Figure = Callable[[Summary, Sequence[Summary]], float]

FIGURES: Mapping[str, tuple[str, Figure]] = {
    "max-age-p50": (" ms", lambda total, _: total.age_ms.p50),
    "max-age-p90": (" ms", lambda total, _: total.age_ms.p90),
    "max-age-p99": (" ms", lambda total, _: total.age_ms.p99),
    "max-age-p999": (" ms", lambda total, _: total.age_ms.p999),
    "max-service-p99": (" ms", lambda total, _: total.service_ms.p99),
    "max-jitter": (" ms", lambda total, _: total.jitter_ms),
    "max-start-jitter-p99": (" ms", lambda total, _: total.start_jitter_ms.p99),
    "min-fps": ("", lambda _, robots: min(robot.fps for robot in robots)),
    "max-misses": ("", lambda total, _: total.misses),
    "max-gaps": ("", lambda total, _: total.gaps),
    "max-superseded": ("", lambda total, _: total.frames.superseded),
    "max-rejected": ("", lambda total, _: sum(total.frames.rejected.values())),
    "max-dropped": ("", lambda total, _: sum(total.frames.dropped.values())),
    "max-unanswered": ("", lambda total, _: sum(total.frames.unanswered.values())),
}


RATIO = "max-jitter-ratio"


def judge(
    limits: Mapping[str, float],
    total: Summary,
    robots: Sequence[Summary],
    refused: int,
    beside: Beside | None = None,
) -> list[Check]:
    """Check a run against its limits. limits: by the names of FIGURES, times in ms; RATIO needs chat. A refused robot,
    and chat without a single answer, always fail.
    """
    figures = {name: FIGURES[name] for name in limits if name != RATIO}
    checks = [Check(name, limits[name], figure(total, robots), unit) for name, (unit, figure) in figures.items()]
    if RATIO in limits:
        checks.append(Check(RATIO, limits[RATIO], beside.jitter_ratio(total) if beside else math.nan, ""))
    if beside is not None:
        checks.append(Check("min-chat-requests", 1, beside.chat.requests, ""))
    if refused:
        checks.append(Check("max-refused", 0, refused, " robots"))
    return checks
