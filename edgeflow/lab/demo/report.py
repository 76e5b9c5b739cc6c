"""The demonstration's results: a table and a verdict on the console, report.json and plots in a folder."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from edgeflow.lab.demo.driver import RobotRun
from edgeflow.lab.demo.recording import CommandedFrame, ModeResult, Series, TimeSeries
from edgeflow_client.loadtest.pictures import colours, figure_of, save
from edgeflow_client.loadtest.results import json_text
from edgeflow_client.loadtest.terminal import FoldingTable

_ALIKE: Final = 0.1  # a relative difference of ages or rates that is not worth a word


def mode_result(run: RobotRun) -> ModeResult:
    return ModeResult(run.mode.value, run.summary, len(run.outcomes), run.successes)


def mean_passes(run: RobotRun) -> float:
    """Passes per action; NaN without any."""
    return float(run.passes.mean()) if run.passes.size else math.nan


def result_table(runs: Sequence[RobotRun], title: str) -> FoldingTable:
    """A table with one row per run."""
    table = FoldingTable("mode", "tasks", "success", "actions/s", "age, ms\np50, p99", "passes", title=title)
    for run in runs:
        ages, success = run.summary.age_ms, mode_result(run).success
        share = f"\n({100 * success.low:.0f} to {100 * success.high:.0f} %)" if run.outcomes else ""
        table.add_row(
            run.mode.value,
            str(run.successes),
            f"{run.successes} of {len(run.outcomes)}{share}",
            _number(run.summary.fps, ".1f"),
            f"{_number(ages.p50, '.0f')}, {_number(ages.p99, '.0f')}",
            _number(mean_passes(run), ".1f"),
        )
    table.caption = "tasks: finished; success: of episodes, with its 95 % interval; passes: per action"
    return table


def verdict(runs: Sequence[RobotRun]) -> str:
    """One sentence on which run is best and why: by tasks finished, then by the share of episodes that succeeded.

    Of a single run, what it finished.
    """
    if len(runs) == 1:
        return f"{runs[0].mode.value} finished {_tasks(runs[0])} in {_seconds(runs)}."
    best = max(_merit(run) for run in runs)
    ahead = [run for run in runs if _merit(run) == best]
    others = [run for run in runs if _merit(run) != best]
    seconds = f"{_seconds(runs)} per mode"
    if not others:
        return f"No mode is best here: each finished {_tasks(ahead[0])} in {seconds}."
    finished = ", ".join(f"{run.mode.value} {_tasks(run)}" for run in others)
    facts = ", and ".join(_compared(ahead[0], run) for run in others)
    if len(ahead) > 1:
        names = " and ".join(run.mode.value for run in ahead)
        return f"{names} are equally good here: each finished {_tasks(ahead[0])} in {seconds}, {finished}."
    return (
        f"{ahead[0].mode.value} is best here: it finished {_tasks(ahead[0])} in {seconds}, {finished};"
        f" its actions ({_pace(ahead[0])}) were {facts}{_doubt(ahead[0], others)}."
    )


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
    """Write report.json, modes.png with all modes, series.png, ages.png and one strip of frames per mode."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {
        "outcomes": {run.mode.value: Counter(outcome.value for outcome in run.outcomes) for run in runs},
        "statistics": {run.mode.value: asdict(run.statistics) for run in runs},
        "passes_per_action": {run.mode.value: mean_passes(run) for run in runs},
    }
    write_report(folder / "report.json", {**facts, **counts}, [mode_result(run) for run in runs], sentence)
    plot_modes(folder / "modes.png", runs)
    plot_series(folder / "series.png", {run.mode.value: run.series for run in runs})
    plot_ages(folder / "ages.png", {run.mode.value: run.ages_ms for run in runs})
    for run in runs:
        if run.snapshots:
            plot_strip(folder / f"frames-{run.mode.value}.png", run.snapshots)


def write_report(path: Path, conditions: Mapping[str, Any], results: Sequence[ModeResult], verdict: str) -> None:
    """Write report.json: conditions, the figures of every mode, the verdict. Unknown figures are null."""
    modes = [{**asdict(result), "success": asdict(result.success)} for result in results]
    content = {"conditions": dict(conditions), "modes": modes, "verdict": verdict}
    path.write_text(json_text(content) + "\n")


def plot_modes(path: Path, runs: Sequence[RobotRun]) -> None:
    """Draw the figures of the table side by side, one colour per mode."""
    panels: tuple[tuple[str, Callable[[RobotRun], float]], ...] = (
        ("tasks finished", lambda run: run.successes),
        ("success, %", lambda run: 100 * mode_result(run).success.value),
        ("actions per second", lambda run: run.summary.fps),
        ("median age, ms", lambda run: run.summary.age_ms.p50),
        ("passes per action", mean_passes),
    )
    figure = figure_of(13.0, 3.4)
    names = [run.mode.value for run in runs]
    for axes, (label, value_of) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        values = [value if math.isfinite(value := value_of(run)) else 0.0 for run in runs]
        axes.bar_label(axes.bar(names, values, color=colours(len(runs)), width=0.6), fmt="%.3g", padding=2)
        axes.set_title(label, fontsize=10)
        axes.tick_params("x", rotation=20)
        axes.margins(y=0.15)
        if label.startswith("success"):
            _draw_intervals(axes, runs)
    save(figure, path)


def plot_series(path: Path, series: Mapping[str, TimeSeries]) -> None:
    """Plot rate and age over the recorded time; one line per mode."""
    figure = figure_of(8.0, 5.0)
    rate, age = figure.subplots(2, 1, sharex=True)
    for colour, (mode, run) in zip(colours(len(series)), series.items(), strict=True):
        rate.plot(run.seconds, run.fps, color=colour, label=mode)
        age.plot(run.seconds, run.age_ms, color=colour, label=mode)
    rate.set_ylabel("actions per second")
    age.set_ylabel("median age, ms")
    age.set_xlabel("seconds")
    for axes in (rate, age):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    rate.legend()
    save(figure, path)


def plot_ages(path: Path, ages_ms: Mapping[str, Series]) -> None:
    """Plot a histogram of the ages of all actions; one colour per mode."""
    figure = figure_of(8.0, 3.6)
    axes = figure.subplots()
    everything = np.concatenate([np.zeros(1), *ages_ms.values()])
    edges = np.linspace(0.0, max(float(np.percentile(everything, 99.5)), 1.0), 60)
    for colour, (mode, ages) in zip(colours(len(ages_ms)), ages_ms.items(), strict=True):
        axes.hist(ages, bins=edges.tolist(), color=colour, alpha=0.6, label=f"{mode} ({ages.size} actions)")
    axes.set_xlabel("age of an action when it arrived, ms")
    axes.set_ylabel("actions")
    axes.legend()
    save(figure, path)


def plot_strip(path: Path, snapshots: Sequence[CommandedFrame]) -> None:
    """Draw camera frames side by side; the arrow is the commanded shift, one image width per 0.3 m."""
    figure = figure_of(1.9 * max(len(snapshots), 1), 2.2)
    for index, snapshot in enumerate(snapshots):
        axes = figure.add_subplot(1, len(snapshots), index + 1)
        height, width, _ = snapshot.image.shape
        axes.imshow(snapshot.image)
        right, up = (component * width / 0.3 for component in snapshot.shift)
        arrow: dict[str, Any] = {"arrowstyle": "->", "color": "white", "linewidth": 2.0}
        centre = (width / 2, height / 2)
        axes.annotate("", xy=(centre[0] + right, centre[1] - up), xytext=centre, arrowprops=arrow)
        axes.set_title(snapshot.caption, fontsize=7)
        axes.set_axis_off()
    save(figure, path)


def _draw_intervals(axes: Any, runs: Sequence[RobotRun]) -> None:
    """Add 95 % intervals to bars of success in percent."""
    for index, run in enumerate(runs):
        success = mode_result(run).success
        if run.outcomes:
            low, high = success.value - success.low, success.high - success.value
            axes.errorbar(index, 100 * success.value, yerr=[[100 * low], [100 * high]], color="black", capsize=5)
    axes.set_ylim(0, 115)


def _merit(run: RobotRun) -> tuple[int, float]:
    return run.successes, run.successes / len(run.outcomes) if run.outcomes else 0.0


def _compared(ours: RobotRun, theirs: RobotRun) -> str:
    """The actions of one run beside those of another: first what is better about them."""
    if not theirs.summary.actions:
        return f"the only ones beside {theirs.mode.value}, which gave none"
    age = _differ(theirs.summary.age_ms.p50, ours.summary.age_ms.p50, "younger", "older", "about as old")
    rate = _differ(ours.summary.fps, theirs.summary.fps, "more frequent", "less frequent", "about as frequent")
    words = sorted((age, rate), key=lambda word: word[0], reverse=True)
    joint = "but" if words[1][0] < 0 <= words[0][0] else "and"
    return f"{words[0][1]} {joint} {words[1][1]} compared with {theirs.mode.value}'s ({_pace(theirs)})"


def _doubt(best: RobotRun, others: Sequence[RobotRun]) -> str:
    """A clause that names the runs whose share of successes is not significantly lower."""
    names = [f"{run.mode.value}'s" for run in others if mode_result(run).success.high >= mode_result(best).success.low]
    return f"; the share of successes does not differ significantly from {' and '.join(names)}" if names else ""


def _differ(good: float, bad: float, better: str, worse: str, alike: str) -> tuple[int, str]:
    """1, 0 or -1 and its word, as `good` is greater than `bad`, about equal, or less."""
    if not abs(good - bad) > _ALIKE * max(good, bad):
        return 0, alike
    return (1, better) if good > bad else (-1, worse)


def _pace(run: RobotRun) -> str:
    return f"{_number(run.summary.age_ms.p50, '.0f')} ms old, {run.summary.fps:.1f} per second"


def _seconds(runs: Sequence[RobotRun]) -> str:
    """How long the runs took: the last episode of each is finished after the time that was planned."""
    shortest, longest = (f"{end(run.summary.seconds for run in runs):.0f}" for end in (min, max))
    return f"{longest} s" if shortest == longest else f"{shortest} to {longest} s"


def _tasks(run: RobotRun) -> str:
    return f"{run.successes} of {len(run.outcomes)} tasks"


def _number(value: float, form: str) -> str:
    return f"{value:{form}}" if math.isfinite(value) else "-"
