"""The table of results as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.metaworld.ages import AgedMode
from benchmarks.metaworld.arm import CONTROL_RATE_HZ
from edgeflow.lab.demo.recording import Estimate, wilson

FRESH = AgedMode("no delay", 0.0)


@dataclass(frozen=True, slots=True)
class TaskCell:
    """The episodes of one task under one condition: steps until success, None without success."""

    task: str
    steps: tuple[int | None, ...]

    @property
    def successes(self) -> int:
        return sum(each is not None for each in self.steps)

    @property
    def seconds(self) -> float | None:
        """The mean duration of the successful episodes."""
        done = [each for each in self.steps if each is not None]
        return float(np.mean(done)) / CONTROL_RATE_HZ if done else None


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """All tasks under one condition."""

    mode: AgedMode
    motion: str
    cells: tuple[TaskCell, ...]

    @property
    def successes(self) -> int:
        return sum(cell.successes for cell in self.cells)

    @property
    def share(self) -> Estimate:
        """The share of successful episodes; the interval takes all episodes of all tasks as one sample."""
        return wilson(self.successes, sum(len(cell.steps) for cell in self.cells))


def as_text(rows: Sequence[ConditionRow]) -> str:
    """The table: successes per task, then of all with the 95 % interval."""
    tasks = [cell.task for cell in rows[0].cells]
    head = ["mode", "age", "motion", *tasks, "all", "95 %"]
    lines = [head, *([*_head(row), *(str(cell.successes) for cell in row.cells), *_total(row)] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def as_json(rows: Sequence[ConditionRow]) -> list[dict[str, Any]]:
    return [
        {
            "mode": row.mode.name,
            "age_ms": row.mode.age_ms,
            "age_steps": row.mode.steps,
            "motion": row.motion,
            "successes": row.successes,
            "episodes": sum(len(cell.steps) for cell in row.cells),
            "interval_95": [row.share.low, row.share.high],
            "tasks": [_cell_json(cell) for cell in row.cells],
        }
        for row in rows
    ]


def _head(row: ConditionRow) -> list[str]:
    return [row.mode.name, f"{row.mode.age_ms:.0f} ms = {row.mode.steps}", row.motion]


def _total(row: ConditionRow) -> list[str]:
    episodes = sum(len(cell.steps) for cell in row.cells)
    return [f"{row.successes} of {episodes}", f"{100 * row.share.low:.1f} to {100 * row.share.high:.1f} %"]


def _cell_json(cell: TaskCell) -> dict[str, Any]:
    share = wilson(cell.successes, len(cell.steps))
    return {
        "task": cell.task,
        "episodes": len(cell.steps),
        "successes": cell.successes,
        "interval_95": [share.low, share.high],
        "mean_seconds_of_successes": cell.seconds,
    }
