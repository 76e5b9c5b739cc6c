"""Episodes of Meta-World's scripted experts with old states, under every condition. Needs `setup`'s environment."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import metaworld
import numpy as np
from metaworld.policies import ENV_POLICY_MAP

from benchmarks.metaworld.ages import AgedMode
from benchmarks.metaworld.arm import PRESENT, OldActions, command
from benchmarks.metaworld.report import FRESH, ConditionRow, TaskCell

Condition = tuple[AgedMode, OldActions]


def measure(
    modes: Sequence[AgedMode],
    motions: Sequence[OldActions],
    tasks: Sequence[str],
    *,
    episodes: int,
    seed: int,
    workers: int,
) -> list[ConditionRow]:
    """A row without delay, then one per mode and motion. workers: processes, each with a task at a time."""
    conditions = [(FRESH, PRESENT), *((mode, motion) for mode in modes for motion in motions)]
    work = partial(_cells, conditions, episodes, seed)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        columns = list(pool.map(work, tasks))
    return [
        ConditionRow(mode, motion.name, tuple(column[number] for column in columns))
        for number, (mode, motion) in enumerate(conditions)
    ]


def _cells(conditions: Sequence[Condition], episodes: int, seed: int, task: str) -> list[TaskCell]:
    """The task under every condition. Modes of the same age in steps share their episodes."""
    warnings.filterwarnings("ignore", message="Constant")  # outputs beyond 1, which are clipped
    begun, simulator = time.monotonic(), TaskEpisodes(task, seed)
    cells: dict[tuple[int, str], TaskCell] = {}
    for mode, motion in conditions:
        key = (mode.steps, motion.name)
        if key not in cells:
            cells[key] = TaskCell(task, tuple(simulator.run(goal, motion, mode.steps) for goal in range(episodes)))
    simulator.close()
    print(f"{task}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return [cells[mode.steps, motion.name] for mode, motion in conditions]


class TaskEpisodes:
    """The simulator of one task, its expert and its goals, which the seed draws."""

    def __init__(self, task: str, seed: int) -> None:
        suite = metaworld.MT1(f"{task}-v3", seed=seed)
        self._env: Any = suite.train_classes[f"{task}-v3"]()
        self._env.touching_object = partial(touches, self._env)
        self._expert = ENV_POLICY_MAP[f"{task}-v3"]()
        self._goals = suite.train_tasks

    def run(self, goal: int, motion: OldActions, age_steps: int) -> int | None:
        """The steps until success, None without success. The arm stood still before the episode, so no state is
        missing.
        """
        self._env.set_task(self._goals[goal])
        state, _ = self._env.reset()
        frames = [(state, self._commanded_m())]
        for step in range(self._env.max_path_length):
            state, frame_m = frames[max(len(frames) - 1 - age_steps, 0)]
            outputs = np.asarray(self._expert.get_action(state), np.float64)
            chosen = command(motion, outputs, frame_m, frames[-1][1], age_steps)
            state, _, _, _, facts = self._env.step(chosen.astype(np.float32))
            frames.append((state, self._commanded_m()))
            if facts["success"]:
                return step + 1
        return None

    def close(self) -> None:
        self._env.close()

    def _commanded_m(self) -> np.ndarray:
        return np.array(self._env.data.mocap_pos[0])


def touches(env: Any, geom: int) -> bool:
    """True if both pads of the gripper press on a geometry. Replaces the simulator's own, a quarter of its time."""
    pairs = env.data.contact.geom
    forces_of = [
        env.data.efc_force[env.data.contact.efc_address[(pairs == pad).any(1) & (pairs == geom).any(1)]]
        for pad in (env.data.geom("leftpad_geom").id, env.data.geom("rightpad_geom").id)
    ]
    return all(forces.sum() > 0.0 for forces in forces_of)
