"""Runs the conditions of the table. Needs the environment that `setup` makes."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from benchmarks.metaworld.ages import AgedMode
from benchmarks.metaworld.arm import PRESENT, Motion
from benchmarks.metaworld.episodes import TaskEpisodes
from benchmarks.metaworld.report import FRESH, Cell, Row

Condition = tuple[AgedMode, Motion]


def measure(
    modes: Sequence[AgedMode],
    motions: Sequence[Motion],
    tasks: Sequence[str],
    *,
    episodes: int,
    seed: int,
    workers: int,
) -> list[Row]:
    """A row without delay, then one per mode and motion. workers: processes, each with a task at a time."""
    conditions = [(FRESH, PRESENT), *((mode, motion) for mode in modes for motion in motions)]
    work = partial(_cells, conditions, episodes, seed)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        columns = list(pool.map(work, tasks))
    return [
        Row(mode, motion.name, tuple(column[number] for column in columns))
        for number, (mode, motion) in enumerate(conditions)
    ]


def _cells(conditions: Sequence[Condition], episodes: int, seed: int, task: str) -> list[Cell]:
    """The task under every condition. Modes of the same age in steps share their episodes."""
    warnings.filterwarnings("ignore", message="Constant")  # outputs beyond 1, which are clipped
    begun, simulator = time.monotonic(), TaskEpisodes(task, seed)
    cells: dict[tuple[int, str], Cell] = {}
    for mode, motion in conditions:
        key = (mode.steps, motion.name)
        if key not in cells:
            cells[key] = Cell(task, tuple(simulator.run(goal, motion, mode.steps) for goal in range(episodes)))
    simulator.close()
    print(f"{task}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return [cells[mode.steps, motion.name] for mode, motion in conditions]
