"""The demonstration's results: a table and a verdict on the console, report.json and plots in a folder."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import Any, Final

import numpy as np
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import MaxNLocator

from edgeflow.lab.demo.recording import CommandedFrame, ModeResult, Series, TimeSeries
from edgeflow.lab.demo.robot_run import RobotRun
from edgeflow_client.loadtest.drawing import figure_of, save, share_bars
from edgeflow_client.loadtest.palette import INK, mode_colour
from edgeflow_client.loadtest.results import json_text
from edgeflow_client.loadtest.terminal import FoldingTable

_ALIKE: Final = 0.1  # smaller relative differences of ages or rates are not mentioned


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
    """One sentence on which run is best and why: by tasks finished, then by success rate. A single run is only
    described.
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


def objects_at(speed: float) -> str:
    """The speed of the objects as text.

    speed: m/s.
    """
    return f"objects at {100 * speed:g} cm/s" if speed else "still objects"


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
    """Write report.json, modes.png with all modes, series.png, ages.png, and one strip of frames per mode."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {
        "outcomes": {run.mode.value: Counter(outcome.value for outcome in run.outcomes) for run in runs},
        "statistics": {run.mode.value: asdict(run.statistics) for run in runs},
        "passes_per_action": {run.mode.value: mean_passes(run) for run in runs},
    }
    write_report(folder / "report.json", {**facts, **counts}, [mode_result(run) for run in runs], sentence)
    title = _condition(facts, runs)
    plot_modes(folder / "modes.png", runs, title)
    plot_series(folder / "series.png", {run.mode.value: run.series for run in runs}, title)
    plot_ages(folder / "ages.png", {run.mode.value: run.ages_ms for run in runs}, title)
    for run in runs:
        if run.snapshots:
            plot_strip(folder / f"frames-{run.mode.value}.png", run.snapshots, f"{run.mode.value}: {title}")


def write_report(path: Path, conditions: Mapping[str, Any], results: Sequence[ModeResult], verdict: str) -> None:
    """Write report.json: conditions, the figures of every mode, the verdict. Unknown figures are null."""
    modes = [{**asdict(result), "success": asdict(result.success)} for result in results]
    content = {"conditions": dict(conditions), "modes": modes, "verdict": verdict}
    path.write_text(json_text(content) + "\n")


def plot_modes(path: Path, runs: Sequence[RobotRun], title: str) -> None:
    """Draw the figures of the table side by side, one colour per mode."""
    panels: tuple[tuple[str, Callable[[RobotRun], float]], ...] = (
        ("tasks finished ↑", lambda run: run.successes),
        ("actions per second ↑", lambda run: run.summary.fps),
        ("latency p50, p99, ms ↓", lambda run: run.summary.age_ms.p50),
        ("passes per action", mean_passes),
    )
    figure = figure_of(
        13.0,
        3.6,
        f"{title}\n↑: more is better; ↓: less is better; line on success: 95 % interval",
    )
    names, colours = [run.mode.value for run in runs], [mode_colour(run.mode.value) for run in runs]
    success, *others = figure.subplots(1, len(panels) + 1)
    tried = [(place, mode_result(run).success) for place, run in enumerate(runs) if run.outcomes]
    share_bars(
        success,
        [place for place, _ in tried],
        [(each.value, each.low, each.high) for _, each in tried],
        0.6,
        [colours[place] for place, _ in tried],
    )
    success.set_title("success, % ↑", fontsize=10)
    for axes, (label, value_of) in zip(others, panels, strict=True):
        values = [value_of(run) for run in runs]
        axes.bar(range(len(runs)), np.nan_to_num(values), 0.6, color=colours)
        for place, value in enumerate(values):
            highest = runs[place].summary.age_ms.p99 if label.startswith("latency") else value
            _above(axes, place, value, highest)
        axes.margins(y=0.15)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(label, fontsize=10)
    for axes in (success, *others):
        axes.set_xticks(range(len(runs)), names, rotation=20)
        axes.set_xlim(-0.6, len(runs) - 0.4)
    save(figure, path)


def _above(axes: Any, place: int, value: float, highest: float) -> None:
    """Write a value above its bar; with a line from there to a higher one, which follows it in the text."""
    text = f"{value:.3g}" if math.isfinite(value) else "none"
    if highest > value:
        axes.errorbar(place, value, yerr=[[0], [highest - value]], color=INK, capsize=3, linewidth=1)
        text += f", {highest:.3g}"
    height = highest if math.isfinite(value) else 0.0
    axes.annotate(text, (place, height), (0, 3), textcoords="offset points", ha="center", fontsize=9)


def plot_series(path: Path, series: Mapping[str, TimeSeries], title: str) -> None:
    """Plot rate and latency over the recorded time; one line per mode."""
    figure = figure_of(9.0, 5.4, f"{title}\nThe rate dips where an episode begins and awaits its first action")
    rate, age = figure.subplots(2, 1, sharex=True)
    for mode, run in series.items():
        rate.plot(run.seconds, run.fps, color=mode_colour(mode), label=mode)
        age.plot(run.seconds, run.age_ms, color=mode_colour(mode))
    rate.set_ylabel("actions per second\n(higher is better)")
    age.set_ylabel("median latency, ms\n(lower is better)")
    age.set_xlabel("time, s")
    for axes in (rate, age):
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=len(series))
    save(figure, path)


def plot_ages(path: Path, ages_ms: Mapping[str, Series], title: str) -> None:
    """Plot a histogram of the ages of all actions; one colour per mode."""
    figure = figure_of(9.0, 4.0, f"{title}\nLatency of all actions (lower is better: further left)")
    axes = figure.subplots()
    everything = np.concatenate([np.zeros(1), *ages_ms.values()])
    edges = np.linspace(0.0, max(float(np.percentile(everything, 99.5)), 1.0), 60)
    for mode, ages in ages_ms.items():
        label = f"{mode} ({ages.size} actions)"
        colour = mode_colour(mode)
        axes.hist(
            ages, bins=edges.tolist(), histtype="stepfilled", facecolor=(colour, 0.4), edgecolor=colour, label=label
        )
    axes.set_xlabel("latency: age of an action when it arrived, ms")
    axes.set_ylabel("actions")
    axes.set_xlim(left=0)
    figure.legend(loc="outside lower center", ncols=len(ages_ms))
    save(figure, path)


def plot_strip(path: Path, snapshots: Sequence[CommandedFrame], title: str) -> None:
    """Draw camera frames side by side; the arrow is the commanded shift, one image width per 0.3 m."""
    legend = "Wrist camera, by time in the episode; arrow: the displacement commanded, a picture is 0.3 m wide"
    figure = figure_of(1.9 * max(len(snapshots), 5), 3.1, f"{title}\n{legend}")
    for index, snapshot in enumerate(snapshots):
        axes = figure.add_subplot(1, len(snapshots), index + 1)
        height, width, _ = snapshot.image.shape
        axes.imshow(snapshot.image)
        right, up = (component * width / 0.3 for component in snapshot.shift)
        centre = (width / 2, height / 2)
        head = (centre[0] + right, centre[1] - up)
        axes.add_patch(
            FancyArrowPatch(centre, head, arrowstyle="->", mutation_scale=12, shrinkA=0, shrinkB=0, color="white", lw=2)
        )
        caption = "\n".join(fill(line, 28) for line in snapshot.caption.splitlines())
        axes.set_title(f"{snapshot.seconds:.1f} s\n{caption}", fontsize=7)
        axes.set_axis_off()
    save(figure, path)


def _condition(facts: Mapping[str, Any], runs: Sequence[RobotRun]) -> str:
    """The conditions of runs as a title."""
    objects, profile = objects_at(facts["object_speed_m_s"]), facts["device_profile"]
    device = "passes as fast as this machine" if profile == "none" else f"pass times of {profile}, emulated"
    return f"{facts['model']}, {objects}, {device}, {_seconds(runs)} per mode"


def _merit(run: RobotRun) -> tuple[int, float]:
    return run.successes, run.successes / len(run.outcomes) if run.outcomes else 0.0


def _compared(ours: RobotRun, theirs: RobotRun) -> str:
    """The actions of one run compared with those of another, advantages first."""
    if not theirs.summary.actions:
        return f"the only ones beside {theirs.mode.value}, which had none"
    age = _differ(theirs.summary.age_ms.p50, ours.summary.age_ms.p50, "fresher", "older", "about as fresh")
    rate = _differ(ours.summary.fps, theirs.summary.fps, "more frequent", "less frequent", "about as frequent")
    words = sorted((age, rate), key=lambda word: word[0], reverse=True)
    joint = "but" if words[1][0] < 0 <= words[0][0] else "and"
    return f"{words[0][1]} {joint} {words[1][1]} compared with {theirs.mode.value}'s ({_pace(theirs)})"


def _doubt(best: RobotRun, others: Sequence[RobotRun]) -> str:
    """A clause that names the runs whose share of successes is not significantly lower."""
    names = [f"{run.mode.value}'s" for run in others if mode_result(run).success.high >= mode_result(best).success.low]
    return f"; the share of successes does not differ significantly from {' and '.join(names)}" if names else ""


def _differ(good: float, bad: float, better: str, worse: str, alike: str) -> tuple[int, str]:
    """1, 0 or -1 and its word: `good` is greater than `bad`, about equal, or less."""
    if not abs(good - bad) > _ALIKE * max(good, bad):
        return 0, alike
    return (1, better) if good > bad else (-1, worse)


def _pace(run: RobotRun) -> str:
    return f"{_number(run.summary.age_ms.p50, '.0f')} ms latency, {run.summary.fps:.1f} per second"


def _seconds(runs: Sequence[RobotRun]) -> str:
    """The duration of the runs as text: each finishes its last episode after the planned time."""
    shortest, longest = (f"{end(run.summary.seconds for run in runs):.0f}" for end in (min, max))
    return f"{longest} s" if shortest == longest else f"{shortest} to {longest} s"


def _tasks(run: RobotRun) -> str:
    return f"{run.successes} of {len(run.outcomes)} tasks"


def _number(value: float, form: str) -> str:
    return f"{value:{form}}" if math.isfinite(value) else "-"
