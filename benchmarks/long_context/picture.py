"""The picture of the comparison: bars by kind and place, and lines by evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.long_context.cells import EVIDENCE, NO_LINES, Cell
from benchmarks.long_context.report import Column, Row, columns_of
from edgeflow.lab.demo.recording import Estimate, wilson

_ACROSS: Final = 4


def picture(path: Path, rows: Sequence[Row], cells: Sequence[Cell], compared: Sequence[str]) -> None:
    """Write a panel for each kind and place, and one of summaries by lines of evidence for each band.

    compared: names of the systems in the latter.
    """
    bands = [[cell for cell in cells if cell.band == band] for band in dict.fromkeys(cell.band for cell in cells)]
    height = -(-(len(columns_of(bands[0])) + 1) // _ACROSS)
    figure = Figure(figsize=(4 * _ACROSS, 3.8 * height * len(bands)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(height * len(bands), _ACROSS, sharey=True, squeeze=False).flat)
    for index, own in enumerate(bands):
        _band(axes[index * height * _ACROSS : (index + 1) * height * _ACROSS], rows, own, compared)
    figure.supylabel("exact answers")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def _band(axes: Sequence[Axes], rows: Sequence[Row], cells: Sequence[Cell], compared: Sequence[str]) -> None:
    """The panels of one length of prompts."""
    columns = columns_of(cells)
    for each, column in zip(axes, columns, strict=False):
        _bars(each, [row for row in rows if column.cell in row.scores], column)
    decisive = next(cell for cell in cells if cell.decides)
    chosen = [row for row in rows if decisive in row.scores and row.name in compared]
    _by_evidence(axes[len(columns)], chosen, decisive)
    for each in axes[len(columns) + 1 :]:
        each.remove()


def _bars(axes: Axes, rows: Sequence[Row], column: Column) -> None:
    exact = [row.scores[column.cell].exact(column.of) for row in rows]
    axes.bar(range(len(rows)), [each.value for each in exact], yerr=_errors(exact), capsize=3)
    axes.set_xticks(range(len(rows)), [row.name for row in rows], rotation=35, ha="right", fontsize=8)
    axes.set_title(f"{column.title}\n{column.cell.band.name}", fontsize=9)
    axes.set_ylim(0, 1.02)


def _by_evidence(axes: Axes, rows: Sequence[Row], cell: Cell) -> None:
    groups = [each for each in EVIDENCE if each != NO_LINES]
    for index, row in enumerate(rows):
        exact = [wilson(*row.scores[cell].counts(lines=each)) for each in groups]
        places = [place + 0.06 * index for place in range(len(groups))]
        axes.errorbar(places, [each.value for each in exact], yerr=_errors(exact), fmt="o-", capsize=3, label=row.name)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_title(f"summary, by lines of evidence\n{cell.band.name}", fontsize=9)
    axes.legend(fontsize=7)


def _errors(exact: Sequence[Estimate]) -> list[list[float]]:
    return [[each.value - each.low for each in exact], [each.high - each.value for each in exact]]
