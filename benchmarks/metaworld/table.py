"""Runs the conditions of the table. Needs the environment that `setup` makes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from benchmarks.metaworld.ages import AgedMode
from benchmarks.metaworld.arm import PRESENT, Motion
from benchmarks.metaworld.episodes import TaskEpisodes
from benchmarks.metaworld.report import FRESH, Cell, Row


def measure(
    modes: Sequence[AgedMode], motions: Sequence[Motion], tasks: Sequence[str], episodes: int, seed: int
) -> list[Row]:
    """A row without delay, then one per mode and motion. Modes of the same age in steps share their episodes."""
    conditions = [(FRESH, PRESENT), *((mode, motion) for mode in modes for motion in motions)]
    cells: dict[tuple[str, int, str], Cell] = {}
    for task in tasks:
        begun, simulator = time.monotonic(), TaskEpisodes(task, seed)
        for mode, motion in conditions:
            key = (task, mode.steps, motion.name)
            if key not in cells:
                cells[key] = Cell(task, tuple(simulator.run(goal, motion, mode.steps) for goal in range(episodes)))
        simulator.close()
        print(f"{task}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return [
        Row(mode, motion.name, tuple(cells[task, mode.steps, motion.name] for task in tasks))
        for mode, motion in conditions
    ]
