"""Plots of a load test as PNG files: age over time, its distribution, rate, and the fates of the frames.

With matplotlib, but without a display or its global state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from edgeflow_client.loadtest.robots.ledger import Fate
from edgeflow_client.loadtest.run import Measurement
from edgeflow_client.loadtest.summary import received_of

FATE_COLOURS = {
    Fate.ACTED: "#4a9b5f",
    Fate.SUPERSEDED: "#c9b458",
    Fate.REJECTED: "#d1495b",
    Fate.DROPPED: "#8a6fae",
    Fate.UNANSWERED: "#555555",
}
MAX_WINDOWS = 60
_COLOURS = ("#3b6fb6", "#d1495b", "#4a9b5f", "#8a6fae")
_DOTS_PER_INCH = 110


def draw(folder: Path, run: Measurement) -> None:
    """Write age.png, age-distribution.png, rate.png and dispositions.png."""
    draw_ages(folder / "age.png", run)
    draw_distribution(folder / "age-distribution.png", run)
    draw_rates(folder / "rate.png", run)
    draw_dispositions(folder / "dispositions.png", run)


def draw_ages(path: Path, run: Measurement) -> None:
    """Plot the age of each action over time."""
    with _axes(path, "seconds", "age, ms") as axes:
        for colour, ledger in zip(colours(len(run.ledgers)), run.ledgers, strict=True):
            frames = received_of(run, ledger)
            seconds = [(frame.received_ns - run.begin_ns) / 1e9 for frame in frames]
            axes.plot(seconds, [frame.age_ns / 1e6 for frame in frames], ".", color=colour, markersize=2)


def draw_distribution(path: Path, run: Measurement) -> None:
    """Plot the cumulative distribution of the ages."""
    ages = np.sort([frame.age_ns / 1e6 for ledger in run.ledgers for frame in received_of(run, ledger)])
    with _axes(path, "age, ms", "share of actions") as axes:
        axes.set_ylim(0, 1.02)
        if ages.size:
            axes.step(ages, (np.arange(ages.size) + 1) / ages.size, where="post")


def draw_rates(path: Path, run: Measurement) -> None:
    """Plot offered and acted frames per second."""
    edges = _edges(run)
    offered = [frame.scheduled_ns for ledger in run.ledgers for frame in ledger.frames]
    acted = [frame.received_ns for ledger in run.ledgers for frame in received_of(run, ledger)]
    with _axes(path, "seconds", "frames per second") as axes:
        for name, instants in (("offered", offered), ("acted", acted)):
            counts, _ = np.histogram((np.array(instants, np.float64) - run.begin_ns) / 1e9, edges)
            axes.step(edges[:-1], counts / np.diff(edges), where="post", label=name)
        axes.legend()


def draw_dispositions(path: Path, run: Measurement) -> None:
    """Plot the fates of the frames that were due in each window of time."""
    edges = _edges(run)
    frames = [frame for ledger in run.ledgers for frame in ledger.frames]
    below = np.zeros(len(edges) - 1)
    with _axes(path, "seconds", "frames") as axes:
        for fate, colour in FATE_COLOURS.items():
            due = np.array([frame.scheduled_ns for frame in frames if frame.fate is fate], np.float64)
            counts, _ = np.histogram((due - run.begin_ns) / 1e9, edges)
            axes.bar(edges[:-1], counts, np.diff(edges), bottom=below, align="edge", color=colour, label=fate.value)
            below = below + counts
        axes.legend()


def figure_of(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout="constrained")


def colours(count: int) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(count)]


def save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def _edges(run: Measurement) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    seconds = (run.end_ns - run.begin_ns) / 1e9
    return np.linspace(0.0, seconds, min(max(int(seconds), 1), MAX_WINDOWS) + 1)


@contextmanager
def _axes(path: Path, x: str, y: str) -> Iterator[Axes]:
    """The axes of a picture, which is written at the end; values are 0 or more."""
    figure = figure_of(8.0, 3.6)
    axes = figure.subplots()
    yield axes
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    save(figure, path)
