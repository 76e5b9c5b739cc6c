"""Figures of the comparison: counts with intervals, and the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from rich.box import SIMPLE
from rich.table import Table

from benchmarks.long_context.cells import EVIDENCE, Band, Question, QuestionCell, Where, evidence, family
from benchmarks.long_context.systems import Reply
from edgeflow.lab.demo.recording import Estimate, wilson

LEAST_GAIN = 0.10
"""Least gain on summary questions about the compressed part: trained gate compared with sink and window."""


@dataclass(slots=True)
class Score:
    """Exact answers of one system in one cell, by kind of question and lines of evidence, and its times."""

    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    right: Counter[tuple[str, str]] = field(default_factory=Counter)
    first_s: list[float] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)

    def add(self, question: Question, reply: Reply) -> None:
        group = question.kind, evidence(question.lines)
        self.asked[group] += 1
        self.right[group] += reply.text == question.answer
        self.first_s.append(reply.first_s)
        self.token_s.append(reply.token_s)

    def counts(self, *, of: str = "", lines: str = "") -> tuple[int, int]:
        """Exact answers and questions.

        of: only of this family or kind. lines: only with this evidence.
        """
        chosen = [
            (kind, found) for kind, found in self.asked if of in ("", kind, family(kind)) and lines in ("", found)
        ]
        return sum(self.right[each] for each in chosen), sum(self.asked[each] for each in chosen)

    def exact(self, of: str = "") -> Estimate:
        """The share of exact answers. of: only to this family."""
        return wilson(*self.counts(of=of))

    def to_json(self) -> dict[str, object]:
        right, asked = self.counts()
        exact = self.exact()
        kinds = dict.fromkeys(kind for kind, _ in self.asked)
        families = dict.fromkeys(map(family, kinds))
        return {
            "asked": asked,
            "right": right,
            "exact": exact.value,
            "interval": [exact.low, exact.high],
            "kinds": {kind: list(self.counts(of=kind)) for kind in kinds},
            "evidence_lines": {
                each: {lines: list(self.counts(of=each, lines=lines)) for lines in EVIDENCE} for each in families
            },
            "first_token_ms": _ms(self.first_s),
            "token_ms": _ms(self.token_s),
        }


@dataclass(frozen=True, slots=True)
class SystemScores:
    """The scores of one system."""

    name: str
    slot_bytes: int
    scores: dict[QuestionCell, Score]
    """Scores of the cells that the system was asked."""

    def of_band(self, band: Band) -> list[Score]:
        """Its scores with prompts of one length."""
        return [score for cell, score in self.scores.items() if cell.band == band]

    def to_json(self) -> dict[str, object]:
        cells = [
            {"band": cell.band.name, "where": cell.where, "summary": cell.summary, **score.to_json()}
            for cell, score in self.scores.items()
        ]
        return {"system": self.name, "slot_bytes": self.slot_bytes, "cells": cells}


@dataclass(frozen=True, slots=True)
class ScoreGain:
    """The gain of one score over another."""

    points: float
    apart: bool
    """True if their intervals do not overlap."""

    @property
    def met(self) -> bool:
        return self.points >= LEAST_GAIN and self.apart


def gain(better: Score, worse: Score) -> ScoreGain:
    one, other = better.exact(), worse.exact()
    return ScoreGain(one.value - other.value, one.low > other.high)


@dataclass(frozen=True, slots=True)
class Column:
    """Questions that are shown together."""

    cell: QuestionCell
    of: str = ""
    """Family of the questions, "" for all of the cell."""

    @property
    def title(self) -> str:
        kind = self.of or ("summary" if self.cell.summary else "look-up")
        return kind if self.cell.where is Where.COMPRESSED else f"kept {kind}"


def columns_of(cells: Sequence[QuestionCell]) -> list[Column]:
    """Columns of the cells of a band; decisive cells are also shown by family."""
    return [Column(cell, of) for cell in cells for of in ((*cell.families, "") if cell.is_decisive else ("",))]


def exact_table(rows: Sequence[SystemScores], band: Band, cells: Sequence[QuestionCell]) -> Table:
    """Exact answers in percent with their intervals, by kind of question and place of the evidence."""
    columns = columns_of([cell for cell in cells if cell.band == band])
    found = _table(f"exact answers, {band.name}", *(each.title for each in columns))
    for row in rows:
        if row.of_band(band):
            found.add_row(row.name, *(_share(row.scores[each.cell].exact(each.of)) for each in columns))
    return found


def evidence_table(rows: Sequence[SystemScores], cell: QuestionCell) -> Table:
    """Exact answers and questions, by the number of lines on which an answer depends; none if that is not defined."""
    found = _table(f"{cell.name}, by lines of evidence, {cell.band.name}", "kind", *EVIDENCE)
    for row in rows:
        if cell in row.scores:
            for of in cell.families:
                found.add_row(
                    row.name, of, *(_counted(*row.scores[cell].counts(of=of, lines=each)) for each in EVIDENCE)
                )
    return found


def cost_table(rows: Sequence[SystemScores], band: Band) -> Table:
    """Bytes of a slot, and medians of times."""
    found = _table(f"cost, {band.name}", "KB a slot", "first token, ms", "ms per token")
    for row in rows:
        scores = row.of_band(band)
        if scores:
            first = _text([each for score in scores for each in score.first_s])
            later = _text([each for score in scores for each in score.token_s])
            found.add_row(row.name, f"{row.slot_bytes / 1000:.0f}", first, later)
    return found


def _table(title: str, *names: str) -> Table:
    """An empty table that keeps the names of systems whole on a narrow terminal."""
    found = Table(title=title, box=SIMPLE, padding=(0, 0, 0, 1))
    found.add_column("system", no_wrap=True)
    for name in names:
        found.add_column(name)
    return found


def _share(exact: Estimate) -> str:
    return f"{exact.value:.1%}\n{100 * exact.low:.0f}-{100 * exact.high:.0f}"


def _counted(right: int, asked: int) -> str:
    return f"{right}/{asked}" if asked else ""


def _text(seconds: Sequence[float]) -> str:
    value = _ms(seconds)
    return "" if value is None else f"{value:.1f}"


def _ms(seconds: Sequence[float]) -> float | None:
    timed = [each for each in seconds if each == each]  # NaN: not timed
    return 1000 * median(timed) if timed else None
