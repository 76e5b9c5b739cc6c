"""A finished run as one value, and that value as report.json and frames.csv."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.chat import Beside
from edgeflow_client.loadtest.measure import StepResult, knee, step_of, step_result
from edgeflow_client.loadtest.robots.plan import Bursts, ClosedLoopPlan, Fixed, LoadPlan, Ramp, parse_duration
from edgeflow_client.loadtest.run import Measurement
from edgeflow_client.loadtest.summary import (
    Generator,
    Prediction,
    RobotSummary,
    generator_of,
    prediction_of,
    summarise,
)

CSV_COLUMNS = (
    *("robot", "frame", "due_ms", "late_ms", "fate", "reason", "age_ms", "server_ms"),
    *("decode_ms", "queue_ms", "inference_ms", "passes", "unsettled", "continued", "late"),
)


PATTERNS = {ClosedLoopPlan: "closed", Fixed: "fixed", Bursts: "bursts", Ramp: "ramp"}
"""Their names in the report."""


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


Figure = Callable[[RobotSummary, Sequence[RobotSummary], "Beside | None"], float]

FIGURES: Mapping[str, tuple[str, Figure]] = {
    "max-age-p50": (" ms", lambda total, *_: total.age_ms.p50),
    "max-age-p90": (" ms", lambda total, *_: total.age_ms.p90),
    "max-age-p99": (" ms", lambda total, *_: total.age_ms.p99),
    "max-age-p999": (" ms", lambda total, *_: total.age_ms.p999),
    "max-service-p99": (" ms", lambda total, *_: total.service_ms.p99),
    "max-jitter": (" ms", lambda total, *_: total.jitter_ms),
    "max-start-jitter-p99": (" ms", lambda total, *_: total.start_jitter_ms.p99),
    "max-jitter-ratio": ("", lambda total, _, beside: beside.jitter_ratio(total) if beside else math.nan),
    "min-fps": ("", lambda _, robots, __: min(robot.fps for robot in robots)),
    "max-misses": ("", lambda total, *_: total.misses),
    "max-gaps": ("", lambda total, *_: total.gaps),
    "max-superseded": ("", lambda total, *_: total.frames.superseded),
    "max-rejected": ("", lambda total, *_: sum(total.frames.rejected.values())),
    "max-dropped": ("", lambda total, *_: sum(total.frames.dropped.values())),
    "max-unanswered": ("", lambda total, *_: sum(total.frames.unanswered.values())),
}


RATIO = "max-jitter-ratio"


def read_limits(settings: Mapping[str, object]) -> dict[str, float]:
    """The limits that settings give, `max_age_p99` for max-age-p99; ConfigError names a key that is wrong."""
    limits = {}
    for key, value in settings.items():
        name = key.replace("_", "-")
        if name not in FIGURES:
            raise ConfigError(f"limits.{key}: unknown key; known: {', '.join(FIGURES).replace('-', '_')}")
        unit, _ = FIGURES[name]
        try:
            limits[name] = 1000 * parse_duration(str(value)) if unit else float(str(value))
        except ValueError:
            kind = "time such as 80ms or 0.1s" if unit else "number"
            raise ConfigError(f"limits.{key}: {value!r} is not a {kind}") from None
        if not 0 <= limits[name] < math.inf:
            raise ConfigError(f"limits.{key}: {value!r} is not a finite number from 0 on")
    return limits


def judge(
    limits: Mapping[str, float],
    total: RobotSummary,
    robots: Sequence[RobotSummary],
    refused: int,
    beside: Beside | None = None,
) -> list[Check]:
    """Check a run against its limits. limits: by the names of FIGURES, times in ms; RATIO needs chat. A rejected robot,
    and chat without a single answer, always fail.
    """
    figures = ((name, limit, *FIGURES[name]) for name, limit in limits.items())
    checks = [Check(name, limit, figure(total, robots, beside), unit) for name, limit, unit, figure in figures]
    if beside is not None:
        checks.append(Check("min-chat-requests", 1, beside.chat.requests, ""))
    if refused:
        checks.append(Check("max-refused", 0, refused, " robots"))
    return checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All figures of a run."""

    plan: LoadPlan
    seconds: float
    interrupted: bool
    total: RobotSummary
    robots: list[RobotSummary]
    predictions: list[Prediction | None]
    refusals: list[str]
    """`robots`, `predictions` and `refusals` have one entry per robot."""
    generator: Generator
    steps: list[StepResult]
    """The steps of a ramp; otherwise empty."""
    checks: list[Check]
    horizon: int = 1
    step_ms: float = 0.0
    """horizon and step_ms of the service's answers."""
    beside: Beside | None = None
    """For a run with chat: the figures without chat, and those of the chat."""

    @property
    def met(self) -> bool:
        return all(check.met for check in self.checks)

    @property
    def knee(self) -> StepResult | None:
        """The highest rate that the service followed."""
        return knee(self.steps)


def results_of(run: Measurement, limits: Mapping[str, float], beside: Beside | None = None) -> Results:
    """Compute all figures of a run. limits: see judge."""
    total = summarise(run, run.ledgers)
    robots = [summarise(run, [ledger]) for ledger in run.ledgers]
    predictions = [prediction_of(run.plan, each, robot) for each, robot in zip(run.opened, robots, strict=True)]
    refused = sum(map(bool, run.refusals))
    schemas = [each.schema for each in run.opened if each is not None]
    return Results(
        plan=run.plan,
        seconds=(run.end_ns - run.begin_ns) / 1e9,
        interrupted=run.interrupted,
        total=total,
        robots=robots,
        predictions=predictions,
        refusals=run.refusals,
        generator=generator_of(run),
        steps=_steps(run),
        checks=judge(limits, total, robots, refused, beside),
        horizon=max((each.horizon for each in schemas), default=1),
        step_ms=max((each.step_ms for each in schemas), default=0.0),
        beside=beside,
    )


def results_json(results: Results) -> str:
    """All figures as strict JSON: NaN and infinities are null."""
    predictions = [
        each and {**asdict(each), "fps_deviation": each.fps_deviation, "age_deviation": each.age_deviation}
        for each in results.predictions
    ]
    plan = asdict(results.plan)
    plan |= {"pattern": {"kind": PATTERNS[type(results.plan.pattern)], **plan["pattern"]}}
    plan |= {"frames": str(results.plan.frames) if results.plan.frames else None}
    best = results.knee
    content: dict[str, Any] = {
        "plan": plan,
        "seconds": results.seconds,
        "interrupted": results.interrupted,
        "horizon": results.horizon,
        "step_ms": results.step_ms,
        "total": _summary(results.total),
        "robots": [_summary(robot) for robot in results.robots],
        "predictions": predictions,
        "refusals": results.refusals,
        "generator": {**asdict(results.generator), "is_bottleneck": results.generator.is_bottleneck},
        "steps": [{**asdict(step), "followed": step.followed} for step in results.steps],
        "knee": best and asdict(best),
        "thresholds": [{**asdict(check), "met": check.met} for check in results.checks],
        "met": results.met,
    }
    if results.beside is not None:
        alone, ratio = _summary(results.beside.alone), results.beside.jitter_ratio(results.total)
        content |= {"alone": alone, "chat": asdict(results.beside.chat), "start_jitter_ratio": ratio}
    return json_text(content)


def json_text(content: Any) -> str:
    """Strict JSON: NaN and infinities become null."""
    return json.dumps(finite(content), indent=2, allow_nan=False)


def finite(value: Any) -> Any:
    """A JSON value with null for NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def write_csv(path: Path, run: Measurement) -> None:
    """Write every frame of the run, including the warm-up: times in ms from the beginning of the measurement."""
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(CSV_COLUMNS)
        for ledger in run.ledgers:
            writer.writerows(_csv_row(run, ledger.robot, index) for index in range(len(ledger.frames)))


def _csv_row(run: Measurement, robot: int, index: int) -> Sequence[object]:
    frame = run.ledgers[robot].frames[index]
    timings = frame.timings
    late_ns = frame.sent_ns - frame.scheduled_ns if frame.sent_ns else None
    age_ns = frame.age_ns if frame.received_ns else None
    due_ns = frame.scheduled_ns - run.begin_ns
    times = [_ms(each) for each in (age_ns, frame.server_ns, timings.decode_ns, timings.queue_ns, timings.inference_ns)]
    head = (robot, frame.number, _ms(due_ns), _ms(late_ns), frame.fate.value, frame.reason)
    return (*head, *times, timings.passes, frame.unsettled, int(frame.continued), int(frame.late))


def _ms(nanoseconds: int | None) -> str:
    return "" if nanoseconds is None else f"{nanoseconds / 1e6:.3f}"


def _summary(summary: RobotSummary) -> dict[str, Any]:
    frames = summary.frames
    derived = {"jitter_ms": summary.jitter_ms, "pass_jitter": summary.pass_jitter}
    return {**asdict(summary), "frames": {**asdict(frames), **frames.shares}, **derived}


def _steps(run: Measurement) -> list[StepResult]:
    pattern = run.plan.pattern
    if not isinstance(pattern, Ramp):
        return []
    steps = [step_of(pattern, index, run.begin_ns) for index in range(len(pattern.rates_hz))]
    return [step_result(step, run.ledgers) for step in steps if step.end_ns <= run.end_ns]
