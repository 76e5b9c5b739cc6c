"""Robots of a worker in this process, as the service runs it, and the observations that they send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import HEIGHT, JOINTS, TASKS, WIDTH

from edgeflow.config.sections import PolicyConfig
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Pace
from edgeflow.engine.control.warmup import warm_up
from edgeflow.ipc.messages import FrameDropped, FrameResult, Message, OpenSession, ResetSession, SubmitFrame
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow.worker.build import build_engine
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import ManualClock

STEP_NS = 100_000_000


class LeRobotBench:
    """A worker that serves a checkpoint by the family that is given, and its robots, with one observation per step."""

    def __init__(self, directory: Path, robots: int = 1, *, family: str = "lerobot", **settings: Any) -> None:
        stated = {"control_rate_hz": 10.0, **settings}
        config = ServiceConfig(
            model=str(directory), device="cpu", max_sessions=robots, policy=PolicyConfig(family=family, **stated)
        )
        built = build_engine(config)
        warm_up(built.engine, Shift.ROTATE, lambda *_: None, rounds=built.rounds)
        self.policy: Any = built.engine.policy
        self._said: list[Message] = []
        self._worker = Worker(built.engine, Scheduler(built.limits), ManualClock(), self._said.append)
        self.steps = dict.fromkeys(range(1, robots + 1), 0)
        self._epoch = 1
        for robot in self.steps:
            opened = OpenSession(session=robot, epoch=1, pace=Pace(1), unnorm_key=self.policy.unnorm_keys[0])
            self._worker.inbox.put(opened)
        self._drain()

    def send(self, *robots: int) -> dict[int, np.ndarray]:
        """[horizon, D] by robot: what it is sent for its next observation, in one pass with those of the others."""
        for robot in robots:
            self.steps[robot] += 1
            images, state, task = observation(robot, self.steps[robot])
            needs = [images[each.name] for each in self.policy.inputs.cameras]
            self._worker.inbox.put(
                SubmitFrame(
                    session=robot,
                    epoch=self._epoch,
                    seq=self.steps[robot],
                    sizes=[side for each in needs for side in each.shape[:2]],
                    state=state,
                    instruction=task,
                    payload=b"".join(each.tobytes() for each in needs),
                    stamp_ns=stamp_ns(robot, self.steps[robot]),
                )
            )
        said = self._drain()
        assert not [each for each in said if isinstance(each, FrameDropped)]
        found = {each.session: each for each in said if isinstance(each, FrameResult)}
        assert sorted(found) == sorted(robots) and all(each.valid for each in found.values())
        return {robot: np.reshape(each.chunk.values, (each.chunk.horizon, -1)) for robot, each in found.items()}

    def reset(self, robot: int) -> None:
        """A new episode of the only robot."""
        self._epoch += 1
        self._worker.inbox.put(ResetSession(session=robot, epoch=self._epoch))
        self._drain()

    def _drain(self) -> list[Message]:
        while self._worker.step():
            pass
        said, self._said[:] = list(self._said), []
        return said


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
