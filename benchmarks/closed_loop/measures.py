"""Distributions of what a robot notices of a service, from the log of answers: ages in force, reactions, ticks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.closed_loop.grid import PERIOD_S
from edgeflow.lab.demo.simulated.episodes import EpisodeRun

Series = NDArray[np.float64]

STEP_NS = 10_000_000  # at which ages in force and events are sampled: a control step of the simulation
PERCENTS = (0, 1, *range(5, 100, 5), 99, 100)


def measures(runs: Sequence[EpisodeRun]) -> dict[str, Any]:
    """The measures of a condition as JSON values; distributions are percentiles at PERCENTS."""
    acted = [run for run in runs if run.acted]
    return {
        "age_in_force_ms": percentiles(_joined([ages_in_force_ms(run) for run in acted])),
        "reaction_ms": percentiles(_joined([reactions_ms(run) for run in acted])),
        "ticks": tick_shares(runs),
    }


def percentiles(values: Series) -> list[float]:
    """The percentiles at PERCENTS; empty without values."""
    return [round(float(value), 3) for value in np.percentile(values, PERCENTS)] if values.size else []


def ages_in_force_ms(run: EpisodeRun) -> Series:
    """Age of the command that the robot follows, sampled from its first action to the end of the episode."""
    captured, arrived = _log(run)
    instants = np.arange(arrived[0], run.seconds * 1e9, STEP_NS)
    return (instants - captured[np.searchsorted(arrived, instants, "right") - 1]) / 1e6


def reactions_ms(run: EpisodeRun) -> Series:
    """Time from an event to the first action whose frame shows it, for events spread evenly over the episode.

    Events after the last frame that was acted on are left out: the episode ended before a reaction.
    """
    captured, arrived = _log(run)
    events = np.arange(0, captured[-1] + 1, STEP_NS)
    return (arrived[np.searchsorted(captured, events)] - events) / 1e6


def tick_shares(runs: Sequence[EpisodeRun]) -> dict[str, float]:
    """Shares of ticks, one per camera frame: with a new action, repeating the last, waiting for the first."""
    counts = {"fresh": 0, "repeating": 0, "waiting": 0}
    for run in runs:
        ticks = max(round(run.seconds / PERIOD_S), 1)
        reached = {min(int(action.arrived_ns / 1e9 / PERIOD_S), ticks - 1) for action in run.acted}
        waiting = min(reached, default=ticks)
        counts["fresh"] += len(reached)
        counts["waiting"] += waiting
        counts["repeating"] += ticks - waiting - len(reached)
    total = max(sum(counts.values()), 1)
    return {name: count / total for name, count in counts.items()}


def _log(run: EpisodeRun) -> tuple[Series, Series]:
    """When frames were captured and their actions arrived, nanoseconds; both ascend."""
    return (
        np.array([action.captured_ns for action in run.acted], np.float64),
        np.array([action.arrived_ns for action in run.acted], np.float64),
    )


def _joined(parts: Sequence[Series]) -> Series:
    return np.concatenate([np.zeros(0), *parts])
