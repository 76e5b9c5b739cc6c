"""A robot that waits for each chunk at rest, in simulated time: what asynchronous execution is compared with."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from edgeflow.client.actions import resolve_rows
from edgeflow.client.pose import Pose
from edgeflow.demo.simulated.camera import Camera, Delay
from edgeflow.demo.simulated.episodes import Acted
from edgeflow.demo.world.proprioception import state_of
from edgeflow.demo.world.sim import RobotSim
from edgeflow.demo.world.task import Outcome
from edgeflow.ipc.messages import FrameResult, Message
from edgeflow.types import ActionSchema
from edgeflow.worker.worker import Worker

TICK_NS: Final = 10_000_000
PLAYED_ROWS: Final = 8
"""Rows of a chunk that are played before the next frame is captured, or all where there are fewer."""


class SynchronousRobot:
    """Captures a frame, rests until its chunk arrives, plays PLAYED_ROWS of it from the first one, and so on.

    now_ns: since the episode began.
    """

    overtaken = late = late_played = 0

    def __init__(
        self,
        sim: RobotSim,
        worker: Worker,
        camera: Camera,
        schema: ActionSchema,
        *,
        has_state: bool,
        delay: Delay | None,
    ) -> None:
        self.now_ns = 0
        self.acted: list[Acted] = []
        self._sim = sim
        self._start_s = sim.time
        self._worker = worker
        self._camera = camera
        self._schema = schema
        self._has_state = has_state
        self._delay = delay
        self._draws = np.random.default_rng(delay.seed if delay else 0)
        self._late: tuple[int, FrameResult] | None = None  # when it is delivered
        self._step_ns = round(schema.step_ms * 1e6)
        self._ticked = 0
        self._captured: tuple[int, Pose] = 0, sim.pose()
        self._rows: np.ndarray | None = None  # of the chunk that is played
        self._began_ns = 0
        self._played = 0
        self._capture()

    def next_event_ns(self) -> int:
        """The next event while no pass runs: a tick, or a drain."""
        wake_at_ns = self._worker.wake_at_ns()
        return self._next_tick_ns if wake_at_ns is None else min(self._next_tick_ns, wake_at_ns)

    def live_until(self, instant_ns: int) -> None:
        """Advance physics and the chunk to an instant."""
        while self._next_tick_ns <= instant_ns and self._sim.outcome is Outcome.RUNNING:
            self._move_to(self._next_tick_ns)
            self._ticked += 1
            if self._late is not None and self._late[0] <= self.now_ns:
                self._begin(self._late[1])
            self._play()
        self._move_to(instant_ns)

    def receive(self, message: Message) -> None:
        """Play a chunk, now or once its delay is over; capture anew where its numbers are not finite."""
        if not isinstance(message, FrameResult):
            return
        if self._delay is None:
            self._begin(message)
            return
        jitter_ns = round(self._delay.jitter_ns * self._draws.uniform(-1.0, 1.0))
        self._late = max(self._captured[0] + self._delay.mean_ns + jitter_ns, self.now_ns), message

    def _begin(self, message: FrameResult) -> None:
        self._late = None
        if not message.valid:
            self._capture()
            return
        self._rows = np.array(message.chunk.values).reshape(message.chunk.horizon, -1)
        self._began_ns, self._played = self.now_ns, 0
        position, velocity = self._sim.goal().position, self._sim.commanded_velocity()
        self._play()
        self.acted.append(
            Acted(
                captured_ns=self._captured[0],
                arrived_ns=self.now_ns,
                passes=message.passes,
                settled=message.settled,
                jump_m=math.dist(self._sim.goal().position, position),
                kick_m_s=math.dist(self._sim.commanded_velocity(), velocity),
            )
        )

    def _play(self) -> None:
        if self._rows is None:
            return
        row = (self.now_ns - self._began_ns) // self._step_ns
        if row >= min(PLAYED_ROWS, len(self._rows)):
            self._sim.hold()
            self._capture()
        elif row >= self._played:
            self._played = row + 1
            target = resolve_rows(self._schema, self._rows[: row + 1], self._captured[1])
            if target.pose is not None:
                self._sim.command(target.pose, target.values["gripper"])

    def _capture(self) -> None:
        self._rows, pose = None, self._sim.pose()
        self._captured = self.now_ns, pose
        state = state_of(pose, self._sim.aperture).tolist() if self._has_state else []
        self._worker.inbox.put(self._camera.capture(state, self.now_ns))

    @property
    def _next_tick_ns(self) -> int:
        return (self._ticked + 1) * TICK_NS

    def _move_to(self, instant_ns: int) -> None:
        self._sim.step(max(0.0, self._start_s + instant_ns / 1e9 - self._sim.time))
        self.now_ns = max(self.now_ns, instant_ns)
