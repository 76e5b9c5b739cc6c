"""The real worker in virtual time: the same scheduler, engine and policy, on a clock advanced by the passes.

A pass lasts as long as a device profile says, or as was measured on this machine at the start; the simulated robot
uses the same clock. Nothing sleeps, so hundreds of episodes at the pace of a slow device take minutes. A frame is drawn
when its prefill is planned, as the camera saw it when it was captured: frames that newer ones replace are never drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from edgeflow.client.pose import Pose
from edgeflow.clock import ManualClock
from edgeflow.demo.simulated.camera import EPOCH, SESSION, Camera, Delay
from edgeflow.demo.simulated.chunk_robot import ChunkRobot
from edgeflow.demo.simulated.episodes import Acted, EpisodeRun, Execution
from edgeflow.demo.simulated.synchronous_robot import SynchronousRobot
from edgeflow.demo.world.expert import action_goal
from edgeflow.demo.world.sim import RobotSim
from edgeflow.demo.world.task import Outcome
from edgeflow.engine.control.engine import PassEngine
from edgeflow.engine.control.profile import Pacer
from edgeflow.ipc.messages import FrameDropped, FrameResult, Message, OpenSession
from edgeflow.reasons import Reason
from edgeflow.scheduler.plan import FrameRef, Pass
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.types import Pace, PassTimes
from edgeflow.worker.worker import Worker


class VirtualService:
    """A worker whose passes take given times. execution: of chunks; single actions are obeyed as they arrive."""

    def __init__(
        self,
        engine: PassEngine,
        limits: SchedulerLimits,
        times: PassTimes,
        *,
        execution: Execution = Execution.RTC,
    ) -> None:
        self._execution = execution
        self._engine = engine
        self._limits = limits
        self._times = times

    def run_episode(
        self, sim: RobotSim, pace: Pace, *, period_s: float, anchored: bool, delay: Delay | None = None
    ) -> EpisodeRun:
        """Run one episode, from the simulation's current state to its outcome.

        period_s: between camera frames. anchored: an action is resolved against the pose of the frame it answers,
        else against the pose at its arrival. delay: none is obeyed sooner than so long after its frame.
        """
        clock, camera = ManualClock(), Camera(sim)
        published: list[Message] = []
        worker = self._worker(clock, published, pace, camera.draw)
        robot = self._robot(sim, worker, camera, period_ns=round(period_s * 1e9), anchored=anchored, delay=delay)
        while sim.outcome is Outcome.RUNNING:
            busy = worker.step()
            robot.live_until(clock.now_ns() if busy else robot.next_event_ns())
            clock.advance_to_ns(robot.now_ns)
            for message in published:
                robot.receive(message)
            published.clear()
        return EpisodeRun(
            outcome=sim.outcome,
            seconds=sim.time,
            frames=camera.frames,
            begun=camera.drawn,
            overtaken=robot.overtaken,
            acted=tuple(robot.acted),
            late=robot.late,
            late_played=robot.late_played,
        )

    def _robot(
        self, sim: RobotSim, worker: Worker, camera: Camera, *, period_ns: int, anchored: bool, delay: Delay | None
    ) -> _Robot:
        policy = self._engine.policy
        schema = policy.action_schema(policy.unnorm_keys[0])
        if schema.horizon == 1:
            return _VirtualRobot(sim, worker, camera, period_ns=period_ns, anchored=anchored, delay=delay)
        if self._execution is Execution.SYNCHRONOUS:
            return SynchronousRobot(sim, worker, camera, schema, has_state=bool(policy.inputs.state), delay=delay)
        return ChunkRobot(
            sim,
            worker,
            camera,
            schema,
            period_ns=period_ns,
            delay=delay,
            state=policy.inputs.state,
            continues=self._execution is Execution.RTC,
        )

    def _worker(self, clock: ManualClock, published: list[Message], pace: Pace, draw: Callable[[int], None]) -> Worker:
        def wait(seconds: float) -> None:
            clock.advance_ns(round(seconds * 1e9))

        scheduler, pacer = _Watched(self._limits, draw), Pacer(self._times, clock, wait)
        worker = Worker(self._engine, scheduler, clock, published.append, pacer=pacer)
        worker.inbox.put(
            OpenSession(session=SESSION, epoch=EPOCH, pace=pace, unnorm_key="", rtc=self._execution is Execution.RTC)
        )
        return worker


class _Watched(Scheduler):
    """A scheduler that announces each frame whose prefill it plans."""

    def __init__(self, limits: SchedulerLimits, announce: Callable[[int], None]) -> None:
        super().__init__(limits)
        self._announce = announce

    def plan(self, now_ns: int) -> Pass[FrameRef] | None:
        planned = super().plan(now_ns)
        for segment in planned.prefills if planned else ():
            self._announce(segment.sequence.seq)
        return planned


class _Robot(Protocol):
    """A robot in simulated time."""

    now_ns: int
    overtaken: int
    acted: list[Acted]

    @property
    def late(self) -> int: ...

    @property
    def late_played(self) -> int: ...

    def next_event_ns(self) -> int: ...

    def live_until(self, instant_ns: int) -> None: ...

    def receive(self, message: Message) -> None: ...


class _VirtualRobot:
    """A robot without the SDK: it captures a frame every period and obeys actions as they arrive, in simulated time."""

    late = late_played = 0

    def __init__(
        self, sim: RobotSim, worker: Worker, camera: Camera, *, period_ns: int, anchored: bool, delay: Delay | None
    ) -> None:
        self.now_ns = 0
        self.overtaken = 0
        self.acted: list[Acted] = []
        self._sim = sim
        self._start_s = sim.time
        self._worker = worker
        self._camera = camera
        self._period_ns = period_ns
        self._anchored = anchored
        self._delay = delay
        self._draws = np.random.default_rng(delay.seed if delay else 0)
        self._poses: dict[int, tuple[int, Pose]] = {}
        self._late: dict[int, tuple[int, FrameResult]] = {}
        self._capture()

    def next_event_ns(self) -> int:
        """The next event while no pass runs: a frame, an action that becomes due, or a drain that does."""
        wake_at_ns = self._worker.wake_at_ns()
        return min(self._own_event_ns, wake_at_ns if wake_at_ns is not None else self._next_frame_ns)

    def live_until(self, instant_ns: int) -> None:
        """Advance physics, camera and delayed actions to an instant."""
        while self._own_event_ns <= instant_ns and self._sim.outcome is Outcome.RUNNING:
            self._move_to(self._own_event_ns)
            self._obey_due()
            if self._next_frame_ns <= self.now_ns:
                self._capture()
        self._move_to(instant_ns)

    def receive(self, message: Message) -> None:
        """Note what became of a frame, now."""
        if isinstance(message, FrameDropped):
            self.overtaken += message.reason == Reason.OVERTAKEN
        elif isinstance(message, FrameResult) and self._delay is None:
            self._obey(message)
        elif isinstance(message, FrameResult) and self._delay is not None:
            jitter_ns = round(self._delay.jitter_ns * self._draws.uniform(-1.0, 1.0))
            due_ns = self._poses[message.seq][0] + self._delay.mean_ns + jitter_ns
            self._late[message.seq] = max(due_ns, self.now_ns), message

    def _obey_due(self) -> None:
        """Obey the newest action that is due, and forget those of older frames."""
        due = [seq for seq, (due_ns, _) in self._late.items() if due_ns <= self.now_ns]
        if due:
            self._obey(self._late[max(due)][1])
            self._late = {seq: late for seq, late in self._late.items() if seq > max(due)}

    def _obey(self, message: FrameResult) -> None:
        captured_ns, pose = self._poses[message.seq]
        self._poses = {seq: entry for seq, entry in self._poses.items() if seq > message.seq}
        values, sim = np.asarray(message.chunk.values), self._sim
        position, velocity = sim.goal().position, sim.commanded_velocity()
        sim.command(action_goal(pose if self._anchored else sim.pose(), values), float(values[6]))
        acted = Acted(
            captured_ns=captured_ns,
            arrived_ns=self.now_ns,
            passes=message.passes,
            settled=message.settled,
            jump_m=math.dist(sim.goal().position, position),
            kick_m_s=math.dist(sim.commanded_velocity(), velocity),
        )
        self.acted.append(acted)

    @property
    def _next_frame_ns(self) -> int:
        return self._camera.frames * self._period_ns

    @property
    def _own_event_ns(self) -> int:
        return min([self._next_frame_ns, *(due_ns for due_ns, _ in self._late.values())])

    def _move_to(self, instant_ns: int) -> None:
        self._sim.step(max(0.0, self._start_s + instant_ns / 1e9 - self._sim.time))
        self.now_ns = max(self.now_ns, instant_ns)

    def _capture(self) -> None:
        frame = self._camera.capture()
        self._poses[frame.seq] = (self.now_ns, self._sim.pose())
        self._worker.inbox.put(frame)
