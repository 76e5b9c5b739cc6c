"""Episodes of Meta-World's scripted experts with old states. Needs the environment that `setup` makes."""

from __future__ import annotations

from functools import partial
from typing import Any

import metaworld
import numpy as np
from metaworld.policies import ENV_POLICY_MAP

from benchmarks.metaworld.arm import Motion, command


class TaskEpisodes:
    """The simulator of one task, its expert and its goals, which the seed draws."""

    def __init__(self, task: str, seed: int) -> None:
        suite = metaworld.MT1(f"{task}-v3", seed=seed)
        self._env: Any = suite.train_classes[f"{task}-v3"]()
        self._env.touching_object = partial(touches, self._env)
        self._expert = ENV_POLICY_MAP[f"{task}-v3"]()
        self._goals = suite.train_tasks

    def run(self, goal: int, motion: Motion, age_steps: int) -> int | None:
        """The steps until success, None without. The arm stood still before the episode, so no state is missing."""
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
