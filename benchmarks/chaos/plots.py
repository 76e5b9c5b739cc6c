"""Plots resident memory over frames as a PNG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.chaos.rules import EARLY, LATE


def plot_resident(path: Path, series: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """Plot (frames, MiB), one panel per process; the two windows that are compared are grey."""
    figure = Figure(figsize=(8.0, 2.6 * len(series)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(series), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, points) in zip(panels, series.items(), strict=True):
        frames, resident = zip(*points, strict=True)
        axes.plot(frames, resident)
        for low, high in (EARLY, LATE):
            axes.axvspan(low * frames[-1], high * frames[-1], color="black", alpha=0.08, linewidth=0)
        axes.set_ylabel(f"{name}, MiB resident")
        axes.grid(alpha=0.3)
    panels[-1].set_xlabel("frames answered")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
