"""Differences between two answers to the same frames: how many agree, where the others part, and by how much."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from heapq import heappush, heapreplace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape

from edgeflow.config.matching import list_text
from edgeflow_client.errors import FailedPrecondition
from edgeflow_client.loadtest.terminal import FoldingTable
from edgeflow_client.recording.records import RecordedAnswer
from edgeflow_client.types import ActionSchema

Rows = NDArray[np.float64]
ONE = "1"  # the unit of numbers without one
WORST = 5
"""The frames with the largest differences that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedAnswer:
    """Where two answers to a frame differ most."""

    session: str
    seq: int
    """The frame, as its robot counts."""
    at_s: float
    """Seconds from the first frame of the session."""
    row: int
    dimension: str
    unit: str
    difference: float
    """In this unit."""
    values: tuple[float, float]
    """Both answers' values."""

    @property
    def text(self) -> str:
        """In words."""
        place = f"frame {self.seq} at {self.at_s:.2f} s, row {self.row}, {self.dimension}"
        size = f"{self.difference:.3g} {'' if self.unit == ONE else self.unit}".rstrip()
        return f"{place}: {self.values[0]:.6g} and {self.values[1]:.6g}, {size} apart"


@dataclass(slots=True, kw_only=True)
class AnswerDifferences:
    """The differences between two sets of answers [rows, D], frame by frame."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    spans: tuple[float, ...]
    """The range of each dimension, by which the worst frames are found; 1 where it has no limits."""
    tolerance: float
    """The largest difference that counts as equal, in the unit of each dimension."""
    rows: int
    """The rows of each answer that are compared."""
    compared: int = 0
    equal: int = 0
    """Frames whose answers differ by at most the tolerance in every value."""
    bit_equal: int = 0
    """Frames whose answers are the same numbers."""
    first: PartedAnswer | None = None
    """The earliest frame that is not equal."""
    _first_index: int = 0
    _frames: list[NDArray[np.float32]] = field(default_factory=list)  # the largest difference [D] of each frame
    _worst: list[tuple[float, int, PartedAnswer]] = field(default_factory=list)

    @classmethod
    def of(cls, first: ActionSchema, second: ActionSchema, tolerance: float) -> AnswerDifferences:
        """Differences between actions of two schemas, which `check_same_action` accepts.

        The rows that both have are compared; of chunks with different steps only the first.
        """
        schema, rows = second, min(first.horizon, second.horizon)
        rows = rows if first.step_ms == second.step_ms else 1
        spans = tuple(
            high - low if np.isfinite(high - low) and high > low else 1.0
            for low, high in zip(schema.low, schema.high, strict=True)
        )
        return cls(names=schema.names, units=schema.units, spans=spans, tolerance=tolerance, rows=rows)

    def add(self, session: str, seq: int, at_s: float, index: int, *, first: Rows, second: Rows) -> None:
        """Compare two answers to a frame. index: of the frame in its session."""
        rows = min(len(first), len(second), self.rows)
        apart = np.nan_to_num(np.abs(first[:rows] - second[:rows]), nan=np.inf)
        self.compared += 1
        self.bit_equal += bool(np.array_equal(first[:rows], second[:rows]))
        self._frames.append(apart.max(axis=0).astype(np.float32))
        row, dim = (int(place) for place in np.unravel_index(np.argmax(apart / self.spans), apart.shape))
        parted = PartedAnswer(
            session=session,
            seq=seq,
            at_s=at_s,
            row=row,
            dimension=self.names[dim],
            unit=self.units[dim],
            difference=float(apart[row, dim]),
            values=(float(first[row, dim]), float(second[row, dim])),
        )
        if apart.max() <= self.tolerance:
            self.equal += 1
        elif self.first is None or index < self._first_index:
            self.first, self._first_index = parted, index
        score = (float(apart[row, dim]) / self.spans[dim], -self.compared, parted)
        if len(self._worst) < WORST:
            heappush(self._worst, score)
        elif score > self._worst[0]:
            heapreplace(self._worst, score)

    @property
    def worst(self) -> list[PartedAnswer]:
        """The frames with the largest differences relative to their dimension's range, the largest first."""
        return [parted for size, _, parted in sorted(self._worst, reverse=True) if size > 0.0]

    @property
    def dimensions(self) -> list[dict[str, Any]]:
        """The mean, 95th percentile and largest difference of each dimension; a frame counts with its largest row."""
        columns = np.stack(self._frames).astype(np.float64).T if self._frames else ()
        return [
            {
                "dimension": name,
                "unit": unit,
                "mean": float(column.mean()),
                "p95": float(np.percentile(column, 95)),
                "largest": float(column.max()),
            }
            for name, unit, column in zip(self.names, self.units, columns, strict=False)
        ]

    def to_json(self) -> dict[str, Any]:
        """The counts, the first and the worst frames, and each dimension."""
        return {
            "compared": self.compared,
            "equal": self.equal,
            "bit_equal": self.bit_equal,
            "tolerance": self.tolerance,
            "first": asdict(self.first) if self.first is not None else None,
            "worst": [asdict(each) for each in self.worst],
            "dimensions": self.dimensions,
        }

    def table(self) -> FoldingTable:
        """The differences in each dimension."""
        table = FoldingTable("dimension", "unit", "mean", "95 %", "largest")
        for each in self.dimensions:
            figures = (f"{each[name]:.3g}" for name in ("mean", "p95", "largest"))
            table.add_row(escape(each["dimension"]), escape(each["unit"]), *figures)
        return table


def rows_of_record(answer: RecordedAnswer, schema: ActionSchema) -> Rows | None:
    """The values [rows, D] of a recorded answer; None if they are not those of such an action."""
    dims, values = len(schema.names), np.asarray(answer.values, np.float64)
    if not dims or not values.size or values.size % dims or values.size != dims * answer.horizon:
        return None
    return values.reshape(-1, dims)


def check_same_action(first: ActionSchema, second: ActionSchema, names: tuple[str, str]) -> None:
    """Raise FailedPrecondition unless both actions have the same dimensions in the same units.

    names: of both sides.
    """
    if first.names != second.names:
        text = f"{names[0]} has the action {list_text(first.names)}, {names[1]} {list_text(second.names)}"
        raise FailedPrecondition(f"{text}: they cannot be compared", field="action")
    for name, one, other in zip(first.names, first.units, second.units, strict=True):
        if one != other:
            text = f"the action's {name!r} is in {one!r} in {names[0]}, in {other!r} in {names[1]}"
            raise FailedPrecondition(f"{text}: they cannot be compared", field="action")
    for kind in ("frame", "rotation", "relative", "whole_way"):
        if getattr(first, kind) != getattr(second, kind):
            text = f"the actions of {names[0]} and {names[1]} differ in `{kind}`"
            raise FailedPrecondition(f"{text}: they cannot be compared", field="action")
