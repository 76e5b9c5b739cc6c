"""A robot in simulated time that rests until each chunk arrives: the baseline for asynchronous execution."""

from __future__ import annotations

from typing import Final

import numpy as np

from edgeflow.ipc.messages import FrameResult
from edgeflow.lab.demo.simulated.camera import SimulatedCamera
from edgeflow.lab.demo.simulated.robot import DelayedAnswers, Send, SimulatedBody, SimulatedRobot, Ticks
from edgeflow.lab.demo.world.robot import state_of
from edgeflow_client.actions import resolve_rows
from edgeflow_client.pose import Pose
from edgeflow_client.types import ActionSchema

PLAYED_ROWS: Final = 8
"""Rows of a chunk that are executed before the next frame is captured; fewer if the chunk is shorter."""


class SynchronousRobot(SimulatedRobot):
    """Captures a frame, rests until its chunk arrives, executes its first PLAYED_ROWS rows, and repeats."""

    def __init__(
        self,
        body: SimulatedBody,
        camera: SimulatedCamera,
        answers: DelayedAnswers,
        send: Send,
        schema: ActionSchema,
        *,
        has_state: bool,
    ) -> None:
        super().__init__(body, camera, answers, send)
        self._schema = schema
        self._has_state = has_state
        self._step_ns = round(schema.step_ms * 1e6)
        self._ticks = Ticks()
        self._captured: tuple[int, Pose] = 0, body.sim.pose()
        self._rows: np.ndarray | None = None  # of the chunk in execution
        self._began_ns = 0
        self._played = 0
        self._capture()

    @property
    def next_event_ns(self) -> int:
        """The next tick: arrivals are checked then."""
        return self._ticks.next_ns

    def act(self) -> None:
        """Start a chunk that has arrived, and execute the row that is due."""
        if self._ticks.due(self._body.now_ns):
            for message in self._answers.arrived(self._body.now_ns):
                self._begin(message)
            self._play()

    def receive(self, message: FrameResult) -> None:
        """Execute a chunk, now or once its delay is over; capture again if its numbers are not finite."""
        if not self._answers.delays(message, captured_ns=self._captured[0], now_ns=self._body.now_ns):
            self._begin(message)

    def _begin(self, message: FrameResult) -> None:
        if not message.valid:
            self._capture()
            return
        self._rows = np.array(message.chunk.values).reshape(message.chunk.horizon, -1)
        self._began_ns, self._played = self._body.now_ns, 0
        before = self._body.course
        self._play()
        self._body.note(before, captured_ns=self._captured[0], passes=message.passes, settled=message.settled)

    def _play(self) -> None:
        if self._rows is None:
            return
        row = (self._body.now_ns - self._began_ns) // self._step_ns
        if row >= min(PLAYED_ROWS, len(self._rows)):
            self._body.sim.hold()
            self._capture()
        elif row >= self._played:
            self._played = row + 1
            target = resolve_rows(self._schema, self._rows[: row + 1], self._captured[1])
            if target.pose is not None:
                self._body.sim.command(target.pose, target.values["gripper"])

    def _capture(self) -> None:
        sim, now_ns = self._body.sim, self._body.now_ns
        self._rows, pose = None, sim.pose()
        self._captured = now_ns, pose
        state = state_of(pose, sim.aperture).tolist() if self._has_state else []
        self._send(self._camera.capture(state, now_ns))
