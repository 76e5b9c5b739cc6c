"""Ages of actions by mode: measured in closed loop, or given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.metaworld.arm import STEP_NS

MAX_AGE_MS = 5000.0  # an episode has 6250 ms


@dataclass(frozen=True, slots=True)
class AgedMode:
    """A mode and the age of its actions."""

    name: str
    age_ms: float

    @property
    def steps(self) -> int:
        """The age in control steps, rounded."""
        return round(self.age_ms * 1e6 / STEP_NS)


def measured(path: Path, profile: str, speed_cm_s: float) -> list[AgedMode]:
    """The median ages of the anchored conditions of a closed-loop result file, the one with most episodes per mode."""
    best: dict[str, Mapping[str, Any]] = {}
    for condition in json.loads(path.read_text())["conditions"]:
        agrees = condition["anchored"] and condition["profile"] == profile and condition["speed_cm_s"] == speed_cm_s
        name = _name(condition)
        if agrees and condition["episodes"] > best.get(name, {"episodes": 0})["episodes"]:
            best[name] = condition
    if not best:
        raise ValueError(f"{path} has no anchored condition with profile {profile} and {speed_cm_s:g} cm/s")
    return [AgedMode(name, float(condition["age_p50_ms"])) for name, condition in best.items()]


def given(text: str) -> AgedMode:
    """The age of a mode from MODE=MS."""
    name, equals, age = text.rpartition("=")
    if not name or not equals:
        raise ValueError(f"expected MODE=MS, got {text!r}")
    age_ms = float(age)
    if not 0.0 <= age_ms <= MAX_AGE_MS:
        raise ValueError(f"an age is 0 to {MAX_AGE_MS:g} ms, got {age}")
    return AgedMode(name, age_ms)


def combined(file: Sequence[AgedMode], told: Sequence[AgedMode]) -> list[AgedMode]:
    """The ages of a file and those given, which come before a file's of the same name."""
    by_name = {mode.name: mode for mode in (*file, *told)}
    return sorted(by_name.values(), key=lambda mode: mode.age_ms)


def _name(condition: Mapping[str, Any]) -> str:
    """The mode with its settings, as far as they are not the default."""
    parts = [str(condition["mode"])]
    for key, words in (("depth", "depth"), ("tolerance_bins", "bins"), ("max_passes", "max_passes")):
        if condition.get(key):
            parts.append(f"{words} {condition[key]}")
    return " ".join(parts) if parts[0] != "depth" else " ".join(parts[1:])
