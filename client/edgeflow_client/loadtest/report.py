"""The demonstration's figures as report.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeflow_client.loadtest.intervals import Estimate, wilson
from edgeflow_client.loadtest.measure import RunSummary


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


def write_report(path: Path, conditions: Mapping[str, Any], results: Sequence[ModeResult], verdict: str) -> None:
    """Write report.json: conditions, the figures of every mode, the verdict. Unknown figures are null."""
    modes = [{**asdict(result), "success": asdict(result.success)} for result in results]
    content = {"conditions": dict(conditions), "modes": modes, "verdict": verdict}
    path.write_text(json_text(content) + "\n")


def json_text(content: Any) -> str:
    """Strict JSON: NaN and infinities become null."""
    return json.dumps(_finite(content), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
