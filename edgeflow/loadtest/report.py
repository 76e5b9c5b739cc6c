"""The demonstration's figures as table rows and as report.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeflow.loadtest.intervals import Estimate, wilson
from edgeflow.loadtest.measure import RunSummary

HEADINGS = ("mode", "FPS", "age p50", "age p99", "jitter", "success", "95 % interval")


@dataclass(frozen=True, slots=True)
class ModeResult:
    """The run of one mode: rate and age of its actions, and how often the robot succeeded."""

    mode: str
    summary: RunSummary
    episodes: int
    successes: int

    @property
    def success(self) -> Estimate:
        return wilson(self.successes, self.episodes)


def row(result: ModeResult) -> tuple[str, ...]:
    """One row of the table under HEADINGS."""
    summary, success = result.summary, result.success
    return (
        result.mode,
        _number(summary.fps, ".1f"),
        _number(summary.age_ms.p50, ".0f", " ms"),
        _number(summary.age_ms.p99, ".0f", " ms"),
        _number(summary.jitter_ms, ".1f", " ms"),
        f"{result.successes} of {result.episodes}" if result.episodes else "-",
        f"{100 * success.low:.0f} to {100 * success.high:.0f} %" if result.episodes else "-",
    )


def comparison(baseline: ModeResult, other: ModeResult) -> str:
    """One sentence on how `other` differs: rate, age, and whether the success rates differ."""
    ours, theirs = other.summary, baseline.summary
    if not (theirs.fps > 0 and ours.fps > 0):
        return f"{other.mode} against {baseline.mode}: no actions to compare."
    rate, age = ours.fps / theirs.fps, ours.age_ms.p50 / theirs.age_ms.p50
    text = (
        f"{other.mode} gave {rate:.2f} times as many actions per second as {baseline.mode}"
        f" ({ours.fps:.1f} against {theirs.fps:.1f}), and they were {age:.2f} times as old"
        f" (median {ours.age_ms.p50:.0f} against {theirs.age_ms.p50:.0f} ms)"
    )
    return f"{text}; {_success_sentence(baseline, other)}."


def write_report(path: Path, conditions: Mapping[str, Any], results: Sequence[ModeResult], verdict: str) -> None:
    """Write report.json: conditions, the figures of every mode, the verdict. Unknown figures are null."""
    modes = [{**asdict(result), "success": asdict(result.success)} for result in results]
    content = {"conditions": dict(conditions), "modes": modes, "verdict": verdict}
    path.write_text(json_text(content) + "\n")


def json_text(content: Any) -> str:
    """Strict JSON: NaN and infinities become null."""
    return json.dumps(_finite(content), indent=2, allow_nan=False)


def _success_sentence(baseline: ModeResult, other: ModeResult) -> str:
    ours, theirs = other.success, baseline.success
    counts = f"{other.successes} of {other.episodes} against {baseline.successes} of {baseline.episodes} episodes"
    if not (baseline.episodes and other.episodes):
        return "success was not compared"
    if ours.low > theirs.high:
        return f"it succeeded more often ({counts})"
    if ours.high < theirs.low:
        return f"it succeeded less often ({counts})"
    return f"no significant difference in success ({counts}, intervals overlap)"


def _number(value: float, form: str, unit: str = "") -> str:
    return f"{value:{form}}{unit}" if math.isfinite(value) else "-"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
