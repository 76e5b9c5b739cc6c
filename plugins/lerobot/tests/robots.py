"""Robots of a worker in this process, as the service runs it, and the observations that they send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import HEIGHT, JOINTS, TASKS, WIDTH

import edgeflow

STEP_NS = 100_000_000


class LeRobotBench:
    """A checkpoint that is served by the family that is given, and its robots, with one observation per step."""

    def __init__(self, directory: Path, robots: int = 1, *, family: str = "lerobot", **settings: Any) -> None:
        stated = {"family": family, "control_rate_hz": 10.0, **settings}
        self._served = edgeflow.load(directory, device="cpu", max_sessions=robots, policy=stated)
        self.policy: Any = self._served._policy
        self.steps = dict.fromkeys(range(1, robots + 1), 0)

    def send(self, *robots: int) -> dict[int, np.ndarray]:
        """[horizon, D] by robot: what it is sent for its next observation, in one pass with those of the others."""
        seen = {}
        for robot in robots:
            self.steps[robot] += 1
            images, state, task = observation(robot, self.steps[robot])
            images = {each.name: images[each.name] for each in self.policy.inputs.cameras}
            vectors = {each.name: state for each in self.policy.inputs.state}
            stamp = {"stamp_ns": stamp_ns(robot, self.steps[robot])}
            seen[robot] = {**images, **vectors, **stamp, "instruction": task}
        return {robot: chunk.array for robot, chunk in self._served.infer_many(seen).items()}

    def reset(self, robot: int) -> None:
        """A new episode of a robot."""
        self._served.reset(robot)


def stamp_ns(robot: int, step: int) -> int:
    """When a robot's observation was captured."""
    return 1_000_000_000 * robot + STEP_NS * step


def observation(robot: int, step: int) -> tuple[dict[str, np.ndarray], list[float], str]:
    """Images by camera, the state, and the task."""
    random = np.random.default_rng([robot, step])
    names = ("observation.images.top", "observation.images.wrist")
    images = {name: random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8) for name in names}
    state = random.uniform(-1, 1, JOINTS).astype(np.float32).tolist()
    return images, state, TASKS[robot % len(TASKS)]
