"""Figures of the comparison: counts with intervals, the table and the picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from benchmarks.long_context.cells import Cell, Question
from benchmarks.long_context.systems import Reply
from edgeflow.loadtest.intervals import Estimate, wilson

LEAST_GAIN = 0.10
"""Summary questions in the compressed part: trained gate above sink and window."""


@dataclass(slots=True)
class Score:
    """Exact answers of one system in one cell, and its times."""

    asked: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    first_s: list[float] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)

    def add(self, question: Question, reply: Reply) -> None:
        self.asked[question.kind] += 1
        self.right[question.kind] += reply.text == question.answer
        self.first_s.append(reply.first_s)
        self.token_s.append(reply.token_s)

    @property
    def exact(self) -> Estimate:
        return wilson(self.right.total(), self.asked.total())

    def to_json(self) -> dict[str, object]:
        exact = self.exact
        return {
            "asked": self.asked.total(),
            "right": self.right.total(),
            "exact": exact.value,
            "interval": [exact.low, exact.high],
            "kinds": {kind: [self.right[kind], self.asked[kind]] for kind in self.asked},
            "first_token_ms": _ms(self.first_s),
            "token_ms": _ms(self.token_s),
        }


@dataclass(frozen=True, slots=True)
class Row:
    """One system. scores: of the cells that it was asked."""

    name: str
    slot_bytes: int
    scores: Mapping[Cell, Score]

    def to_json(self) -> dict[str, object]:
        cells = [
            {"band": cell.band.name, "where": cell.where, "summary": cell.summary, **score.to_json()}
            for cell, score in self.scores.items()
        ]
        return {"system": self.name, "slot_bytes": self.slot_bytes, "cells": cells}


@dataclass(frozen=True, slots=True)
class Gain:
    """How much better one score is than another; apart: their intervals do not meet."""

    points: float
    apart: bool

    @property
    def met(self) -> bool:
        return self.points >= LEAST_GAIN and self.apart


def gain(better: Score, worse: Score) -> Gain:
    one, other = better.exact, worse.exact
    return Gain(one.value - other.value, one.low > other.high)


def table(rows: Sequence[Row], cells: Sequence[Cell]) -> Table:
    """Exact answers in percent with their intervals, bytes and times, a block of columns for each band."""
    longest = max((cell.band.longest for cell in cells), default=0)
    names = [f"{cell.name}\n{cell.band.name}" for cell in cells]
    found = Table("system", "KB a slot", *names, f"first token ms\nup to {longest}", "ms per token")
    for row in rows:
        shares = (_share(row.scores[cell]) if cell in row.scores else "" for cell in cells)
        times = [score for cell, score in row.scores.items() if cell.band.longest == longest]
        first = _told([each for score in times for each in score.first_s])
        each = _told([each for score in times for each in score.token_s])
        found.add_row(row.name, f"{row.slot_bytes / 1000:.0f}", *shares, first, each)
    return found


def picture(path: Path, rows: Sequence[Row], cells: Sequence[Cell]) -> None:
    """Bars of exact answers with their intervals, one panel for each cell."""
    figure = Figure(figsize=(4.5 * len(cells), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, cell in zip(figure.subplots(1, len(cells), sharey=True, squeeze=False)[0], cells, strict=True):
        shown = [row for row in rows if cell in row.scores]
        exact = [row.scores[cell].exact for row in shown]
        errors = [[each.value - each.low for each in exact], [each.high - each.value for each in exact]]
        axes.bar(range(len(shown)), [each.value for each in exact], yerr=errors, capsize=3)
        axes.set_xticks(range(len(shown)), [row.name for row in shown], rotation=30, ha="right", fontsize=8)
        axes.set_title(f"{cell.name}\n{cell.band.name}", fontsize=9)
        axes.set_ylim(0, 1)
    figure.supylabel("exact answers")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _share(score: Score) -> str:
    exact = score.exact
    return f"{exact.value:.1%} [{exact.low:.0%}, {exact.high:.0%}]"


def _told(seconds: Sequence[float]) -> str:
    value = _ms(seconds)
    return "" if value is None else f"{value:.1f}"


def _ms(seconds: Sequence[float]) -> float | None:
    timed = [each for each in seconds if each == each]  # NaN: not timed
    return 1000 * median(timed) if timed else None
