"""The real worker in virtual time: the same scheduler, engine and policy, on a clock that the passes advance.

A pass takes the time in a device profile, or the time measured on this machine at the start; the simulated robot uses
the same clock. Nothing sleeps, so hundreds of episodes at the pace of a slow device take minutes. A frame is rendered
when the policy prepares it, as the camera saw it at capture. Those that newer ones replace are never rendered, unless a
history asks for them.
"""

from __future__ import annotations

from collections.abc import Callable

from edgeflow.contract import Pace, PassTimes
from edgeflow.engine.control.engine import PassEngine
from edgeflow.engine.control.profile import Pacer
from edgeflow.engine.policy import Policy, bridged_rows
from edgeflow.ipc.messages import FrameDropped, FrameResult, Message, OpenSession
from edgeflow.lab.demo.simulated.camera import EPOCH, SESSION, Seen, SimulatedCamera
from edgeflow.lab.demo.simulated.client_robot import ClientRobot, RobotPlan, Send
from edgeflow.lab.demo.simulated.episodes import EpisodeRun
from edgeflow.lab.demo.simulated.robot import Delay, DelayedAnswers, SimulatedBody, VirtualRobot
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.scheduler import forecast
from edgeflow.scheduler.execution import CONTINUING, ExecutionFacts
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.worker.worker import Worker
from edgeflow_client.aging import DEFAULT, Aging
from edgeflow_client.clock import ManualClock
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Execution

RobotFactory = Callable[[SimulatedBody, SimulatedCamera, DelayedAnswers, Send, RobotPlan], VirtualRobot]


class VirtualService:
    """A worker whose passes take given times.

    execution: as in a session's Open. aging: of the robot. seen: called with each rendered frame. robot: makes the
    robot of each episode.
    """

    def __init__(
        self,
        engine: PassEngine,
        limits: SchedulerLimits,
        times: PassTimes,
        *,
        execution: Execution = Execution.AUTO,
        aging: Aging = DEFAULT,
        seen: Seen | None = None,
        robot: RobotFactory = ClientRobot,
    ) -> None:
        self._execution = execution
        self._aging = aging
        self._seen = seen
        self._robot = robot
        self._engine = engine
        self._limits = limits
        self._times = times

    def run_episode(
        self, sim: RobotSim, pace: Pace, *, period_s: float, anchored: bool, delay: Delay | None = None
    ) -> EpisodeRun:
        """Run one episode, from the simulation's current state to its outcome.

        period_s: between camera frames. anchored: as in RobotPlan. delay: the least age at which an action arrives.
        """
        clock, camera, body = ManualClock(), SimulatedCamera(sim, self._seen), SimulatedBody(sim)
        published: list[Message] = []
        worker = self._worker(clock, published, pace)
        plan = self._plan(pace, round(period_s * 1e9), anchored)
        robot = self._robot(body, camera, DelayedAnswers(delay), worker.inbox.put, plan)
        answered = overtaken = 0
        while body.running:
            busy = worker.step()
            # A pass has moved the clock: let the world catch up before the robot sees what the pass published. Without
            # a pass nothing but the next event can change anything, so skip to it.
            _live_until(clock.now_ns() if busy else _wake_ns(robot, worker), robot, body)
            clock.advance_to_ns(body.now_ns)  # after a pass it is there already
            for message in published:
                if isinstance(message, FrameResult | FrameDropped):
                    robot.receive(message)
                    answered += isinstance(message, FrameResult)
                    overtaken += isinstance(message, FrameDropped) and message.reason == Reason.OVERTAKEN
            published.clear()
        return EpisodeRun(
            outcome=sim.outcome,
            seconds=sim.time,
            frames=camera.frames,
            begun=answered + overtaken,
            overtaken=overtaken,
            acted=tuple(body.acted),
            late=robot.late,
            late_played=robot.late_played,
            held_ns=body.held_ns,
            commands=tuple(body.commands),
            jumped_ns=body.jumped_ns,
        )

    def _plan(self, pace: Pace, period_ns: int, anchored: bool) -> RobotPlan:
        policy = self._engine.policy
        schema, inputs = policy.action_schema(policy.unnorm_keys[0]), policy.inputs
        alone = forecast.ForecastSession(pace=pace, period_ns=period_ns, program=policy.program())
        seen = forecast.forecast(self._times, self._limits, [alone])[0]
        return RobotPlan(
            schema=schema,
            state=inputs.state,
            facts=facts_of(policy).at(pace, self._times.packed_ns),
            execution=self._execution,
            forecast=forecast.AnswerForecast.of(seen, pace),
            period_ns=period_ns,
            keeps_history=inputs.history > 1,
            aging=self._aging,
            anchored=anchored,
        )

    def _worker(self, clock: ManualClock, published: list[Message], pace: Pace) -> Worker:
        def wait(seconds: float) -> None:
            clock.advance_ns(round(seconds * 1e9))

        pacer = Pacer(self._times, clock, wait)
        worker = Worker(self._engine, Scheduler(self._limits), clock, published.append, pacer=pacer)
        continues = self._execution in CONTINUING
        worker.inbox.put(OpenSession(session=SESSION, epoch=EPOCH, pace=pace, unnorm_key="", continues=continues))
        return worker


def facts_of(policy: Policy) -> ExecutionFacts:
    """How the answers of a policy may be executed."""
    schema = policy.action_schema(policy.unnorm_keys[0])
    rows, timed = bridged_rows(policy, schema.horizon), policy.inputs.most_delay_ms > 0.0
    return ExecutionFacts.of(schema, rows, continues=policy.rtc is not None, timed=timed)


def _wake_ns(robot: VirtualRobot, worker: Worker) -> int:
    """The next event while no pass runs: the robot's, or a drain that becomes due."""
    wake_at_ns = worker.wake_at_ns()
    return robot.next_event_ns if wake_at_ns is None else min(robot.next_event_ns, wake_at_ns)


def _live_until(instant_ns: int, robot: VirtualRobot, body: SimulatedBody) -> None:
    """Advance physics and the robot's own events to an instant."""
    while robot.next_event_ns <= instant_ns and body.running:
        body.move_to(robot.next_event_ns)
        robot.act()
    body.move_to(instant_ns)
