"""The real worker in virtual time: the same scheduler, engine and policy, on a clock that the passes advance.

A pass takes the time in a device profile, or the time measured on this machine at the start; the simulated robot uses
the same clock. Nothing sleeps, so hundreds of episodes at the pace of a slow device take minutes. A frame is rendered
when its prefill starts, as the camera saw it at capture: frames that newer ones replace are never rendered.
"""

from __future__ import annotations

from collections.abc import Callable

from edgeflow.contract import Pace, PassTimes
from edgeflow.engine.control.engine import PassEngine
from edgeflow.engine.control.profile import Pacer
from edgeflow.ipc.messages import FrameDropped, FrameResult, Message, OpenSession
from edgeflow.lab.demo.simulated.action_robot import ActionRobot
from edgeflow.lab.demo.simulated.camera import EPOCH, SESSION, Seen, SimulatedCamera
from edgeflow.lab.demo.simulated.chunk_robot import ChunkRobot
from edgeflow.lab.demo.simulated.episodes import EpisodeRun, Execution
from edgeflow.lab.demo.simulated.robot import Delay, DelayedAnswers, Send, SimulatedBody, SimulatedRobot
from edgeflow.lab.demo.simulated.synchronous_robot import SynchronousRobot
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.scheduler import forecast
from edgeflow.scheduler.plan import FrameRef
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import ManualClock
from edgeflow_client.reasons import Reason


class VirtualService:
    """A worker whose passes take given times.

    execution: of chunks; single actions are executed as they arrive. seen: called with each rendered frame, that is,
    each frame whose prefill starts.
    """

    def __init__(
        self,
        engine: PassEngine,
        limits: SchedulerLimits,
        times: PassTimes,
        *,
        execution: Execution = Execution.RTC,
        seen: Seen | None = None,
    ) -> None:
        self._execution = execution
        self._seen = seen
        self._engine = engine
        self._limits = limits
        self._times = times

    def run_episode(
        self, sim: RobotSim, pace: Pace, *, period_s: float, anchored: bool, delay: Delay | None = None
    ) -> EpisodeRun:
        """Run one episode, from the simulation's current state to its outcome.

        period_s: between camera frames. anchored: as in ActionRobot. delay: the least age at which an action arrives.
        """
        clock, camera, body = ManualClock(), SimulatedCamera(sim, self._seen), SimulatedBody(sim)
        published: list[Message] = []
        worker = self._worker(clock, published, pace, camera.draw)
        robot = self._robot(
            body,
            camera,
            DelayedAnswers(delay),
            worker.inbox.put,
            pace,
            period_ns=round(period_s * 1e9),
            anchored=anchored,
        )
        overtaken = 0
        while body.running:
            busy = worker.step()
            # A pass has moved the clock: let the world catch up before the robot sees what the pass published. Without
            # a pass nothing but the next event can change anything, so skip to it.
            _live_until(clock.now_ns() if busy else _wake_ns(robot, worker), robot, body)
            clock.advance_to_ns(body.now_ns)  # after a pass it is there already
            for message in published:
                if isinstance(message, FrameResult):
                    robot.receive(message)
                elif isinstance(message, FrameDropped):
                    overtaken += message.reason == Reason.OVERTAKEN
            published.clear()
        return EpisodeRun(
            outcome=sim.outcome,
            seconds=sim.time,
            frames=camera.frames,
            begun=camera.drawn,
            overtaken=overtaken,
            acted=tuple(body.acted),
            late=robot.late,
            late_played=robot.late_played,
        )

    def _robot(
        self,
        body: SimulatedBody,
        camera: SimulatedCamera,
        answers: DelayedAnswers,
        send: Send,
        pace: Pace,
        *,
        period_ns: int,
        anchored: bool,
    ) -> SimulatedRobot:
        policy = self._engine.policy
        schema, has_state = policy.action_schema(policy.unnorm_keys[0]), bool(policy.inputs.state)
        if schema.horizon == 1:
            return ActionRobot(body, camera, answers, send, period_ns=period_ns, anchored=anchored)
        if self._execution is Execution.SYNCHRONOUS:
            return SynchronousRobot(body, camera, answers, send, schema, has_state=has_state)
        return ChunkRobot(
            body,
            camera,
            answers,
            send,
            schema,
            period_ns=period_ns,
            state=policy.inputs.state,
            continues=self._execution is Execution.RTC,
            forecast_ns=self._forecast_ns(pace, period_ns),
        )

    def _forecast_ns(self, pace: Pace, period_ns: int) -> int:
        robot = forecast.ForecastSession(pace=pace, period_ns=period_ns, program=self._engine.policy.program())
        return forecast.forecast(self._times, self._limits, [robot])[0].worst_age_ns

    def _worker(self, clock: ManualClock, published: list[Message], pace: Pace, draw: Callable[[int], None]) -> Worker:
        def wait(seconds: float) -> None:
            clock.advance_ns(round(seconds * 1e9))

        scheduler, pacer = _AnnouncingScheduler(self._limits, draw), Pacer(self._times, clock, wait)
        worker = Worker(self._engine, scheduler, clock, published.append, pacer=pacer)
        worker.inbox.put(
            OpenSession(session=SESSION, epoch=EPOCH, pace=pace, unnorm_key="", rtc=self._execution is Execution.RTC)
        )
        return worker


class _AnnouncingScheduler(Scheduler):
    """A scheduler that announces each frame whose prefill is about to start."""

    def __init__(self, limits: SchedulerLimits, announce: Callable[[int], None]) -> None:
        super().__init__(limits)
        self._announce = announce

    def next_frames(self, now_ns: int) -> list[FrameRef]:
        frames = super().next_frames(now_ns)
        for frame in frames:
            self._announce(frame.seq)
        return frames


def _wake_ns(robot: SimulatedRobot, worker: Worker) -> int:
    """The next event while no pass runs: the robot's, or a drain that becomes due."""
    wake_at_ns = worker.wake_at_ns()
    return robot.next_event_ns if wake_at_ns is None else min(robot.next_event_ns, wake_at_ns)


def _live_until(instant_ns: int, robot: SimulatedRobot, body: SimulatedBody) -> None:
    """Advance physics and the robot's own events to an instant."""
    while robot.next_event_ns <= instant_ns and body.running:
        body.move_to(robot.next_event_ns)
        robot.act()
    body.move_to(instant_ns)
