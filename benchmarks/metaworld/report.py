"""The table of results as text and JSON, and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.metaworld.ages import AgedMode
from benchmarks.metaworld.arm import CONTROL_RATE_HZ
from edgeflow.lab.demo.recording import Estimate, wilson
from edgeflow_client.loadtest.pictures import colours, figure_of, save

FRESH = AgedMode("no delay", 0.0)


@dataclass(frozen=True, slots=True)
class TaskCell:
    """The episodes of one task under one condition: steps until success, None without."""

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


def plot(path: Path, rows: Sequence[ConditionRow]) -> None:
    """Success of all tasks with its interval, by mode and motion; the line is success without delay."""
    fresh, others = rows[0], rows[1:]
    modes = list(dict.fromkeys(row.mode for row in others))
    motions = list(dict.fromkeys(row.motion for row in others))
    figure = figure_of(2.0 + 1.6 * len(modes), 4.2)
    axes = figure.subplots()
    width = 0.8 / max(len(motions), 1)
    for index, (colour, motion) in enumerate(zip(colours(len(motions)), motions, strict=True)):
        places = [
            modes.index(row.mode) + (index - (len(motions) - 1) / 2) * width for row in others if row.motion == motion
        ]
        shares = [row.share for row in others if row.motion == motion]
        heights = [100 * share.value for share in shares]
        errors = [
            [100 * (share.value - share.low) for share in shares],
            [100 * (share.high - share.value) for share in shares],
        ]
        axes.bar(places, heights, width, yerr=errors, capsize=3, color=colour, label=motion)
    axes.axhline(100 * fresh.share.value, color="black", linestyle="--", linewidth=1, label=FRESH.name)
    axes.set_xticks(range(len(modes)), [f"{mode.name}\n{mode.age_ms:.0f} ms" for mode in modes])
    axes.set_ylim(0, 105)
    axes.set_ylabel("success, %")
    figure.legend(loc="outside upper center", ncols=2)
    save(figure, path)


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
