"""Everything that the project's plots share: titles, intervals, limits, and what was not run.

The colours are in palette.py. Uses matplotlib without a display and without its global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from edgeflow_client.loadtest.palette import INK

Share: TypeAlias = tuple[float, float, float]
"""A share with the ends of its 95 % interval, 0 to 1."""

_DOTS_PER_INCH = 110


def figure_of(width: float, height: float, title: str) -> Figure:
    """An empty figure, in inches. title: what is shown, and under which conditions."""
    figure = Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout="constrained")
    figure.suptitle(title, fontsize=11)
    return figure


def save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def share_bars(
    axes: Axes,
    places: Sequence[float],
    shares: Sequence[Share],
    width: float,
    colour: str | Sequence[str],
    label: str = "",
) -> None:
    """Draw bars of shares in percent with their intervals, and write each value above its interval."""
    heights = [100 * share for share, _, _ in shares]
    errors = [[100 * (share - low) for share, low, _ in shares], [100 * (high - share) for share, _, high in shares]]
    axes.bar(places, heights, width, color=colour, label=label or None)
    axes.errorbar(places, heights, yerr=errors, fmt="none", ecolor=INK, capsize=3, linewidth=1)
    for place, (share, _, high) in zip(places, shares, strict=True):
        axes.annotate(
            f"{100 * share:.3g}", (place, 100 * high), (0, 3), textcoords="offset points", ha="center", fontsize=8
        )
    axes.set_ylim(0, 112)
    axes.set_yticks(range(0, 101, 20))


def not_run(axes: Axes, place: float, width: float) -> None:
    """Mark the place of a bar that was not measured."""
    axes.axvspan(
        place - width / 2, place + width / 2, facecolor="white", edgecolor="#CCCCCC", hatch="////", linewidth=0
    )
    middle = sum(axes.get_ylim()) / 2
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    axes.text(place, middle, "not run", rotation=90, ha="center", va="center", fontsize=7, color=INK, bbox=box)


def limit_line(axes: Axes, value: float, label: str, *, upright: bool = False) -> None:
    """Draw the limit that a quantity was asked to keep."""
    (axes.axvline if upright else axes.axhline)(value, color=INK, linestyle="--", linewidth=1.2, label=label)
