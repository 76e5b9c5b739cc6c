"""Budgets and learning rates of training runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from edgeflow_client.errors import ConfigError

_WARM_UP: Final = 100  # steps


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a training run: its rate rises to `peak` and falls along a cosine to `floor`, shares of the highest."""

    steps: int
    peak: float = 1.0
    floor: float = 0.02


def rate_share(step: int, phases: Sequence[Phase]) -> float:
    """Share of the highest learning rate at a step of a run, which goes through its phases in turn."""
    into = step
    for phase in phases:
        if into < phase.steps:
            break
        into -= phase.steps
    cosine = phase.floor + (phase.peak - phase.floor) * 0.5 * (1.0 + math.cos(math.pi * into / phase.steps))
    return min(1.0, (into + 1) / _WARM_UP) * cosine


def budget_share(minutes: float | None, full: float) -> float:
    """Share of a full run that a budget in minutes pays for; None = all of it. ConfigError for no budget at all."""
    if minutes is None:
        return 1.0
    if minutes <= 0:
        raise ConfigError(f"minutes must be above 0, got {minutes}")
    return minutes / full
