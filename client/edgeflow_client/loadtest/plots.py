"""Plots of a report as PNG files, with matplotlib but without a display or its global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from edgeflow_client.loadtest.measure import Series, TimeSeries

_COLOURS = ("#3b6fb6", "#d1495b", "#4a9b5f", "#8a6fae")
_DOTS_PER_INCH = 110


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A camera frame `[height, width, 3]` uint8 and the command given for it.

    shift: in the image plane, right and up, metres; caption: one or two lines.
    """

    image: NDArray[np.uint8]
    shift: tuple[float, float]
    caption: str


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


def plot_strip(path: Path, snapshots: Sequence[Snapshot]) -> None:
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


def figure_of(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout="constrained")


def colours(count: int) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(count)]


def save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    figure.savefig(path, format="png")
