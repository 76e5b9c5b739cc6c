"""Plots of a load test as PNG files: latency over time, its distribution, rate, and the fates of the frames.

Latency is the age of an action on receipt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from edgeflow_client.loadtest.drawing import figure_of, limit_line, save
from edgeflow_client.loadtest.palette import CYCLE, GREY, GROUND, INK, QUANTITIES, colours
from edgeflow_client.loadtest.results import Check, Results
from edgeflow_client.loadtest.robots.ledger import Fate
from edgeflow_client.loadtest.robots.plan import Bursts, Fixed, LoadPlan, Ramp
from edgeflow_client.loadtest.run import Measurement
from edgeflow_client.loadtest.summary import received_of

MAX_WINDOWS = 60
PERCENTILES = (("p50", "o", "-"), ("p95", "s", "-."), ("p99", "D", ":"))
"""Those that are marked, with their markers and lines."""
LATENCY, LOWER = "latency, ms", "lower is better"


def draw(folder: Path, run: Measurement, results: Results) -> None:
    """Write age.png, age-distribution.png, rate.png and dispositions.png."""
    draw_ages(folder / "age.png", run, results)
    draw_distribution(folder / "age-distribution.png", run, results)
    draw_rates(folder / "rate.png", run, results)
    draw_dispositions(folder / "dispositions.png", run)


def draw_ages(path: Path, run: Measurement, results: Results) -> None:
    """Plot the age of each action over time, with its percentiles, HOLD and STOP, and the limits asked for."""
    many = len(run.ledgers) > len(CYCLE)
    robots = [QUANTITIES["latency"]] * len(run.ledgers) if many else colours(len(run.ledgers))
    with _axes(path, f"Latency of each action ({LOWER})", run, "time, s", LATENCY) as axes:
        for colour, ledger in zip(robots, run.ledgers, strict=True):
            frames = received_of(run, ledger)
            seconds = [(frame.received_ns - run.begin_ns) / 1e9 for frame in frames]
            label = None if many else f"robot {ledger.robot}"
            axes.plot(seconds, [frame.age_ns / 1e6 for frame in frames], ".", color=colour, markersize=4, label=label)
        for name, _, line in PERCENTILES:
            age = getattr(results.total.age_ms, name)
            if math.isfinite(age):
                axes.axhline(age, color=GREY, linestyle=line, linewidth=1, zorder=1, label=f"{name}: {age:.1f} ms")
        for kind in ("hold", "stop"):
            happened = [each for ledger in run.ledgers for each in ledger.happenings if each.kind == kind]
            instants = [each.at_ns for each in happened if run.begin_ns <= each.at_ns < run.end_ns]
            if instants:
                places = [(instant - run.begin_ns) / 1e9 for instant in instants]
                axes.plot(
                    places, [0.93] * len(places), "v", color=QUANTITIES[kind], transform=axes.get_xaxis_transform(),
                    label=f"{kind.upper()}: {len(places)}",
                )  # fmt: skip
        axes.set_xlim(0, _edges(run)[-1])
        for check in _age_limits(results):
            limit_line(axes, check.limit, _asked(check))


def draw_distribution(path: Path, run: Measurement, results: Results) -> None:
    """Plot the cumulative distribution of the ages, with its percentiles and the limits asked for."""
    ages = np.sort([frame.age_ns / 1e6 for ledger in run.ledgers for frame in received_of(run, ledger)])
    with _axes(path, f"Distribution of the latency ({LOWER}: further left)", run, LATENCY, "actions, %") as axes:
        axes.set_ylim(0, 102)
        if ages.size:
            axes.step(ages, 100 * (np.arange(ages.size) + 1) / ages.size, where="post", color=QUANTITIES["latency"])
            for name, marker, _ in PERCENTILES:
                age = getattr(results.total.age_ms, name)
                axes.plot([age], [float(name[1:])], marker, color=INK, markersize=5, label=f"{name}: {age:.1f} ms")
        axes.set_xlim(left=0)
        for check in _age_limits(results):
            limit_line(axes, check.limit, _asked(check), upright=True)


def draw_rates(path: Path, run: Measurement, results: Results) -> None:
    """Plot offered and acted frames per second, the mean of all robots."""
    edges, robots = _edges(run), len(run.ledgers)
    offered = [frame.scheduled_ns for ledger in run.ledgers for frame in ledger.frames]
    acted = [frame.received_ns for ledger in run.ledgers for frame in received_of(run, ledger)]
    with _axes(path, "Rate (higher is better)", run, "time, s", "frames per second and robot") as axes:
        highest = 1.0
        for name, instants, colour in (("offered", offered, GREY), ("acted", acted, QUANTITIES["rate"])):
            counts, _ = np.histogram((np.array(instants, np.float64) - run.begin_ns) / 1e9, edges)
            rates = counts / np.diff(edges) / robots
            axes.stairs(rates, edges, baseline=None, color=colour, linewidth=1.6, label=name)
            highest = max(highest, rates.max())
        axes.set_xlim(0, edges[-1])
        axes.set_ylim(top=1.1 * highest)
        for check in results.checks:
            if check.name == "min-fps":
                limit_line(axes, check.limit, f"asked: at least {check.limit:g} for each robot")


def draw_dispositions(path: Path, run: Measurement) -> None:
    """Plot the fates of the frames that were due in each window of time."""
    edges = _edges(run)
    frames = [frame for ledger in run.ledgers for frame in ledger.frames]
    below = np.zeros(len(edges) - 1)
    with _axes(path, "What became of the frames", run, "time when due, s", "frames") as axes:
        for fate in Fate:
            due = np.array([frame.scheduled_ns for frame in frames if frame.fate is fate], np.float64)
            counts, _ = np.histogram((due - run.begin_ns) / 1e9, edges)
            axes.bar(
                edges[:-1], counts, np.diff(edges), bottom=below, align="edge", edgecolor=GROUND, linewidth=0.5,
                color=QUANTITIES[fate.value], label=f"{fate.value}: {counts.sum()}",
            )  # fmt: skip
            below = below + counts
        axes.set_xlim(0, edges[-1])
        axes.set_ylim(top=1.05 * max(below.max(), 1))


def _age_limits(results: Results) -> list[Check]:
    return [check for check in results.checks if check.name.startswith("max-age-")]


def _asked(check: Check) -> str:
    return f"asked: {check.name.removeprefix('max-age-')} at most {check.limit:g} ms"


def _edges(run: Measurement) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    seconds = (run.end_ns - run.begin_ns) / 1e9
    return np.linspace(0.0, seconds, min(max(int(seconds), 1), MAX_WINDOWS) + 1)


@contextmanager
def _axes(path: Path, what: str, run: Measurement, x: str, y: str) -> Iterator[Axes]:
    """The axes of a picture, which is written at the end; values are 0 or more."""
    figure = figure_of(9.0, 3.8, f"{what}\n{_conditions(run)}")
    axes = figure.subplots()
    yield axes
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=6, fontsize=8)
    save(figure, path)


def _conditions(run: Measurement) -> str:
    """Address, mode, load and length of a run."""
    plan = run.plan
    modes = dict.fromkeys(opened.mode.value for opened in run.opened if opened is not None)
    robots = "1 robot" if plan.robots == 1 else f"{plan.robots} robots"
    parts = (
        plan.address,
        " and ".join(modes),
        f"{robots}, {_load(plan)}",
        f"{(run.end_ns - run.begin_ns) / 1e9:.0f} s",
    )
    return ", ".join(part for part in parts if part)


def _load(plan: LoadPlan) -> str:
    match plan.pattern:
        case Fixed(rate_hz=rate):
            return f"{rate:g} frames per second"
        case Bursts(frames=frames, period_s=period):
            return f"{frames} frames every {period:g} s"
        case Ramp(first_hz=first, last_hz=last):
            return f"{first:g} to {last:g} frames per second"
    return "as fast as answered"
