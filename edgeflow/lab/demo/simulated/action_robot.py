"""A robot without the SDK in simulated time: it executes single actions as they arrive."""

from __future__ import annotations

import numpy as np

from edgeflow.ipc.messages import FrameResult
from edgeflow.lab.demo.simulated.camera import SimulatedCamera
from edgeflow.lab.demo.simulated.robot import DelayedAnswers, Send, SimulatedBody, SimulatedRobot
from edgeflow.lab.demo.world.expert import action_goal
from edgeflow_client.pose import Pose


class ActionRobot(SimulatedRobot):
    """Captures a frame every period and executes the newest action that has arrived.

    anchored: an action is resolved against the tool pose in its frame, otherwise against the pose when it arrives.
    """

    def __init__(
        self,
        body: SimulatedBody,
        camera: SimulatedCamera,
        answers: DelayedAnswers,
        send: Send,
        *,
        period_ns: int,
        anchored: bool,
    ) -> None:
        super().__init__(body, camera, answers, send)
        self._period_ns = period_ns
        self._anchored = anchored
        self._poses: dict[int, tuple[int, Pose]] = {}
        self._capture()

    @property
    def next_event_ns(self) -> int:
        """The next frame, or the arrival of an action before it."""
        return min([self._next_frame_ns, *self._answers.arrivals_ns])

    def act(self) -> None:
        """Execute the action that has arrived and capture the frame that is due."""
        arrived = self._answers.arrived(self._body.now_ns)
        if arrived:
            self._obey(max(arrived, key=lambda message: message.seq))
        if self._next_frame_ns <= self._body.now_ns:
            self._capture()

    def receive(self, message: FrameResult) -> None:
        """Receive an answer now."""
        captured_ns, _ = self._poses[message.seq]
        if not self._answers.delays(message, captured_ns=captured_ns, now_ns=self._body.now_ns):
            self._obey(message)

    def _obey(self, message: FrameResult) -> None:
        """Execute an action; those of older frames are not needed any more."""
        captured_ns, pose = self._poses[message.seq]
        self._poses = {seq: entry for seq, entry in self._poses.items() if seq > message.seq}
        self._answers.forget(message.seq)
        values, sim, before = np.asarray(message.chunk.values), self._body.sim, self._body.course
        sim.command(action_goal(pose if self._anchored else sim.pose(), values), float(values[6]))
        self._body.note(before, captured_ns=captured_ns, passes=message.passes, settled=message.settled)

    @property
    def _next_frame_ns(self) -> int:
        return self._camera.frames * self._period_ns

    def _capture(self) -> None:
        frame = self._camera.capture()
        self._poses[frame.seq] = (self._body.now_ns, self._body.sim.pose())
        self._send(frame)
