"""The demonstration's results: a table on the console, report.json and plots in a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from edgeflow.demo.driver import RobotRun
from edgeflow.loadtest.plots import plot_ages, plot_series, plot_strip, plot_success
from edgeflow.loadtest.report import HEADINGS, ModeResult, comparison, row, write_report


def mode_result(run: RobotRun) -> ModeResult:
    return ModeResult(run.mode.value, run.summary, len(run.outcomes), run.successes)


def result_table(runs: Sequence[RobotRun], title: str) -> Table:
    """A table with one row per run."""
    table = Table(*HEADINGS, title=title, caption="FPS: over whole episodes, including the wait for the first action")
    for run in runs:
        table.add_row(*row(mode_result(run)))
    return table


def verdict(runs: Sequence[RobotRun]) -> str:
    """One sentence comparing the second run's mode with the first's."""
    first, second = runs
    return comparison(mode_result(first), mode_result(second))


def conditions(run: RobotRun, profile: str) -> dict[str, Any]:
    """The conditions needed to repeat a run."""
    plan = run.plan
    return {
        "model": run.model,
        "device_profile": profile,
        "anchored": plan.anchored,
        "object_speed_m_s": plan.object_speed,
        "first_seed": plan.seed,
        "frame_hz": plan.frame_hz,
    }


def write_folder(folder: Path, runs: Sequence[RobotRun], facts: Mapping[str, Any], sentence: str) -> None:
    """Write report.json, series.png, ages.png, success.png and one strip of frames per mode."""
    folder.mkdir(parents=True, exist_ok=True)
    results = [mode_result(run) for run in runs]
    counts = {
        "outcomes": {run.mode.value: Counter(outcome.value for outcome in run.outcomes) for run in runs},
        "statistics": {run.mode.value: asdict(run.statistics) for run in runs},
    }
    write_report(folder / "report.json", {**facts, **counts}, results, sentence)
    plot_series(folder / "series.png", {run.mode.value: run.series for run in runs})
    plot_ages(folder / "ages.png", {run.mode.value: run.ages_ms for run in runs})
    plot_success(folder / "success.png", results)
    for run in runs:
        if run.snapshots:
            plot_strip(folder / f"frames-{run.mode.value}.png", run.snapshots)
