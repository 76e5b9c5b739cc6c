"""LIBERO's tasks as gymnasium environments: `libero/libero_spatial` and so on, with task=N of the suite."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from edgeflow_client.errors import ConfigError

LONGEST = {"libero_spatial": 280, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
"""Steps of an episode, by suite."""
STILL = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
"""No motion, and the gripper open."""
FALLING = 10  # steps in which objects come to rest after a reset


class LiberoTask(gymnasium.Env[Any, Any]):
    """A task of a suite.

    An observation is robosuite's, and `state` [8]: position of the gripper, its rotation vector, both finger joints.
    An action [7] is a displacement of the gripper, -1 to 1 per dimension, and -1 to open or 1 to close it. The seed
    chooses one of the task's initial states. size: pixels of a picture's sides.
    """

    metadata = {"render_modes": [], "render_fps": 20}  # noqa: RUF012 - as in the base class
    observation_space = gymnasium.spaces.Dict()
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (7,), np.float32)

    def __init__(self, suite: str, task: int = 0, size: int = 256) -> None:
        folder = Path(os.environ.get("LIBERO_CONFIG_PATH", Path.home() / ".libero"))
        if not (folder / "config.yaml").is_file():  # the import would ask at the terminal
            raise ConfigError("env: LIBERO is not set up: run `python -c 'import libero.libero'` once and answer N")
        from libero.libero.benchmark import get_benchmark
        from libero.libero.envs import OffScreenRenderEnv

        tasks = get_benchmark(suite)()
        if not 0 <= task < tasks.n_tasks:
            raise ConfigError(f"env: {suite} has the tasks 0 to {tasks.n_tasks - 1}, not {task}")
        self.instruction = str(tasks.get_task(task).language)
        self._starts = tasks.get_task_init_states(task)
        self._env = OffScreenRenderEnv(
            bddl_file_name=tasks.get_task_bddl_file_path(task), camera_heights=size, camera_widths=size
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._env.seed(seed)
        self._env.reset()
        self._env.set_init_state(self._starts[(seed or 0) % len(self._starts)])
        for _ in range(FALLING):
            seen, *_ = self._env.step(STILL)
        return self._seen(seen), {"is_success": False}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, _, _ = self._env.step(action)
        success = bool(self._env.check_success())
        return self._seen(seen), float(reward), success, False, {"is_success": success}

    def close(self) -> None:
        self._env.close()

    def _seen(self, seen: dict[str, Any]) -> dict[str, Any]:
        from robosuite.utils.transform_utils import quat2axisangle

        turned = quat2axisangle(np.array(seen["robot0_eef_quat"]))
        return {**seen, "state": np.concatenate([seen["robot0_eef_pos"], turned, seen["robot0_gripper_qpos"]])}


for _suite, _steps in LONGEST.items():
    gymnasium.register(
        f"libero/{_suite}", f"{__name__}:{LiberoTask.__name__}", kwargs={"suite": _suite}, max_episode_steps=_steps
    )
