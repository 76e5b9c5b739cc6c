"""The real worker in virtual time: the same scheduler, engine and policy, on a clock advanced by the passes.

A pass lasts as long as a device profile says, or as was measured on this machine at the start; the simulated robot
uses the same clock. Nothing sleeps, so hundreds of episodes at the pace of a slow device take minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from edgeflow.client.pose import Pose
from edgeflow.clock import ManualClock
from edgeflow.demo.expert import action_goal
from edgeflow.demo.sim import RobotSim
from edgeflow.demo.task import Outcome
from edgeflow.engine.control.actions import PolicyEngine
from edgeflow.engine.control.profile import DeviceProfile, Pacer
from edgeflow.engine.process.worker import Worker
from edgeflow.ipc.messages import FrameResult, Message, OpenSession, SubmitFrame
from edgeflow.scheduler.pace import pace_of
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.types import Mode, Pace

_SESSION = 1
_EPOCH = 1


@dataclass(frozen=True, slots=True)
class EpisodeRun:
    """Result of one episode. ages_ns: age of each action when it arrived. seconds: simulated."""

    outcome: Outcome
    seconds: float
    frames: int
    ages_ns: list[int] = field(repr=False)

    @property
    def actions(self) -> int:
        return len(self.ages_ns)


class VirtualService:
    """A worker whose passes take the times of a device profile."""

    def __init__(self, engine: PolicyEngine, limits: SchedulerLimits, profile: DeviceProfile) -> None:
        self._engine = engine
        self._limits = limits
        self._profile = profile

    def run_episode(self, sim: RobotSim, mode: Mode, *, period_s: float, anchored: bool, depth: int = 0) -> EpisodeRun:
        """Run one episode, from the simulation's current state to its outcome.

        period_s: between camera frames. anchored: an action is resolved against the pose of the frame it answers,
        else against the pose at its arrival.
        """
        clock = ManualClock()
        published: list[Message] = []
        worker = self._worker(clock, published, pace_of(mode, self._engine.policy.K, depth))
        robot = _VirtualRobot(sim, worker, round(period_s * 1e9), anchored)
        while sim.outcome is Outcome.RUNNING:
            busy = worker.step()
            robot.live_until(clock.now_ns() if busy else robot.next_event_ns())
            clock.advance_to_ns(robot.now_ns)
            for message in published:
                robot.receive(message)
            published.clear()
        return EpisodeRun(sim.outcome, sim.time, robot.frames, robot.ages_ns)

    def _worker(self, clock: ManualClock, published: list[Message], pace: Pace) -> Worker:
        def wait(seconds: float) -> None:
            clock.advance_ns(round(seconds * 1e9))

        pacer = Pacer(self._profile.times(self._engine.policy.K), clock, wait)
        worker = Worker(self._engine, Scheduler(self._limits), clock, published.append, pacer=pacer)
        worker.inbox.put(OpenSession(session=_SESSION, epoch=_EPOCH, pace=pace, unnorm_key=""))
        return worker


class _VirtualRobot:
    """A robot that captures a frame every period and obeys actions as they arrive, in simulated time."""

    def __init__(self, sim: RobotSim, worker: Worker, period_ns: int, anchored: bool) -> None:
        self.now_ns = 0
        self.frames = 0
        self.ages_ns: list[int] = []
        self._sim = sim
        self._start_s = sim.time
        self._worker = worker
        self._period_ns = period_ns
        self._anchored = anchored
        self._poses: dict[int, tuple[int, Pose]] = {}
        self._capture()

    def next_event_ns(self) -> int:
        """The next event while no pass runs: a frame, or a drain that becomes due."""
        wake_at_ns = self._worker.wake_at_ns()
        return self._next_frame_ns if wake_at_ns is None else min(self._next_frame_ns, wake_at_ns)

    def live_until(self, instant_ns: int) -> None:
        """Advance physics and camera to an instant."""
        while self._next_frame_ns <= instant_ns and self._sim.outcome is Outcome.RUNNING:
            self._move_to(self._next_frame_ns)
            self._capture()
        self._move_to(instant_ns)

    def receive(self, message: Message) -> None:
        """Apply an action that arrives now."""
        if not isinstance(message, FrameResult):
            return
        captured_ns, pose = self._poses[message.seq]
        self._poses = {seq: entry for seq, entry in self._poses.items() if seq > message.seq}
        self.ages_ns.append(self.now_ns - captured_ns)
        values = np.asarray(message.values)
        self._sim.command(action_goal(pose if self._anchored else self._sim.pose(), values), float(values[6]))

    @property
    def _next_frame_ns(self) -> int:
        return self.frames * self._period_ns

    def _move_to(self, instant_ns: int) -> None:
        self._sim.step(max(0.0, self._start_s + instant_ns / 1e9 - self._sim.time))
        self.now_ns = max(self.now_ns, instant_ns)

    def _capture(self) -> None:
        image = self._sim.capture()
        self.frames += 1
        self._poses[self.frames] = (self.now_ns, self._sim.pose())
        height, width, _ = image.shape
        self._worker.inbox.put(
            SubmitFrame(
                session=_SESSION,
                epoch=_EPOCH,
                seq=self.frames,
                height=height,
                width=width,
                instruction=self._sim.instruction,
                payload=image.tobytes(),
            )
        )
