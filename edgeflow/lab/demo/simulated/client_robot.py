"""A robot in simulated time with the SDK's own session: watchdog, validity, blending, rests.

What control does between robot and worker is here, too, with the same code: which frames are answered, how their
answers are executed, and how late they are expected (scheduler/execution.py, scheduler/answer_ages.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from edgeflow.ipc.messages import FrameDropped, FrameResult, SubmitFrame
from edgeflow.lab.demo.simulated.camera import EPOCH, SESSION, SimulatedCamera
from edgeflow.lab.demo.simulated.robot import DelayedAnswers, SimulatedBody, Ticks
from edgeflow.lab.demo.world.robot import state_of
from edgeflow.scheduler.answer_ages import AnswerAges
from edgeflow.scheduler.execution import FULL_RATE, AnswerExecution, ExecutionFacts, SessionExecution
from edgeflow.scheduler.forecast import AnswerForecast
from edgeflow_client.actions import Action, Directive
from edgeflow_client.aging import DEFAULT, Aging
from edgeflow_client.connection.outgoing import OutgoingMessages
from edgeflow_client.connection.wire import EXECUTION_NUMBERS, SessionSettings, schema_message
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.session import ClientSession
from edgeflow_client.trajectory import Playing
from edgeflow_client.types import ActionSchema, Execution, StateSpec

LEAST_VALID_MS: Final = 250  # the service's default (config.sections.TimingConfig.action_ttl_ms)
START_NS: Final = 1_000_000_000  # start of an episode on the robot's clock: a stamp of 0 is not valid
RESUME_WITHIN_NS: Final = 2_000_000_000
Send = Callable[[SubmitFrame], None]
"""Submits a frame to the worker."""


@dataclass(frozen=True, slots=True)
class _BodyClock:
    """The robot's clock (edgeflow_client.clock.Clock)."""

    body: SimulatedBody

    def now_ns(self) -> int:
        return START_NS + self.body.now_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotPlan:
    """How a robot is served and executes answers."""

    schema: ActionSchema
    state: tuple[StateSpec, ...]
    facts: ExecutionFacts
    execution: Execution
    forecast: AnswerForecast
    period_ns: int
    """Between two frames."""
    keeps_history: bool = False
    """The policy takes earlier observations, also those that are not answered."""
    aging: Aging = DEFAULT
    """How targets allow for the age of their actions."""
    anchored: bool = True
    """Actions are resolved against the pose of their frame; otherwise against the pose at the time."""


class ClientRobot:
    """Captures a frame every period and executes what the SDK returns."""

    def __init__(
        self, body: SimulatedBody, camera: SimulatedCamera, answers: DelayedAnswers, send: Send, plan: RobotPlan
    ) -> None:
        self._body = body
        self._camera = camera
        self._answers = answers
        self._send = send
        self._plan = plan
        self._captured: dict[int, int] = {}
        self._in_flight: dict[int, AnswerExecution | None] = {}
        self._ticks = Ticks()
        self._ages = AnswerAges()
        self._execution = SessionExecution(plan.execution, plan.facts, period_ns=plan.period_ns)
        self._execution.begin(self._delay_ns, plan.forecast.gap_ns)
        self._directive: Directive | None = None
        self._playing = 0
        agreed = SessionSettings(cameras=(), control_period_s=plan.period_ns / 1e9, state=plan.state)
        clock, task = _BodyClock(body), body.sim.instruction
        self._session = ClientSession(agreed, task, clock, RESUME_WITHIN_NS, plan.aging)
        self._outgoing = OutgoingMessages(self._session.opening())
        next(self._outgoing)  # Open
        self._session.stream_opened(_opened(plan.schema), self._outgoing)
        self._capture()

    @property
    def late(self) -> int:
        """Number of chunks that came too late to continue the chunk in execution as planned."""
        return self._session.flight.late

    @property
    def late_played(self) -> int:
        """Number of late chunks that were executed after it."""
        return self._session.flight.late_played

    @property
    def next_event_ns(self) -> int:
        """The next tick or frame, or the arrival of an answer before it."""
        return min([self._next_frame_ns, self._ticks.next_ns, *self._answers.arrivals_ns])

    def act(self) -> None:
        """Pass what has arrived to the SDK, do what it returns, and capture the frame that is due."""
        now_ns = self._body.now_ns
        for message in self._answers.arrived(now_ns):
            self._deliver(message)
        if self._ticks.due(now_ns):
            self._obey()
        if self._next_frame_ns <= now_ns:
            self._capture()

    def receive(self, message: FrameResult | FrameDropped) -> None:
        """An answer, or the end of a frame without one."""
        if isinstance(message, FrameDropped):
            if message.seq in self._in_flight:
                del self._in_flight[message.seq]
                self._execution.left(message.seq)
        elif not self._answers.delays(message, captured_ns=self._captured[message.seq], now_ns=self._body.now_ns):
            self._deliver(message)

    def _deliver(self, message: FrameResult) -> None:
        """Pass a result to the SDK, in the form that control sends, and execute it if the SDK accepts it."""
        self._ages.sent(message.seq, message.queue_ns + message.inference_ns)
        how = self._in_flight.pop(message.seq)
        self._execution.sent(message.seq, self._body.now_ns)
        action = _action(message, START_NS + self._captured[message.seq], how)
        self._session.stream_message(pb.ServerMessage(action=action))
        self._obey()

    def _obey(self) -> None:
        directive = self._session.directive()
        if directive is self._directive:
            return
        if directive.action is None:
            self._body.hold(first=self._directive is not None and self._directive.action is not None)
        else:
            self._play(directive.action)
        self._directive = directive

    def _play(self, action: Action) -> None:
        target = action.target("frame" if self._plan.anchored else self._body.sim.pose())
        captured_ns = self._captured[action.seq]
        if target.pose is not None:
            self._body.command(target.pose, target.values["gripper"], captured_ns=captured_ns)
        if action.seq != self._playing:
            self._playing = action.seq
            how = action.execution.value if action.execution is not None else ""
            passes, settled = action.timings.passes, action.settled
            self._body.note(captured_ns=captured_ns, passes=passes, settled=settled, execution=how)

    @property
    def _delay_ns(self) -> int:
        return self._ages.expected_ns(self._plan.forecast.age_ns)

    @property
    def _next_frame_ns(self) -> int:
        return self._camera.frames * self._plan.period_ns

    def _capture(self) -> None:
        sim = self._body.sim
        pose = sim.pose()
        state = [float(each) for each in state_of(pose, sim.aperture)] if self._plan.state else []
        seq = self._session.push([], state, pose, "", START_NS + self._body.now_ns)
        sent = next(self._outgoing).frame  # except the pixels, which the camera has
        self._captured[seq] = self._body.now_ns
        if sent.HasField("arrived"):
            self._ages.arrived(sent.arrived.seq, sent.arrived.age_ns)
        self._submit(sent, self._camera.capture(state, sent.stamp_ns))

    def _submit(self, sent: pb.Frame, frame: SubmitFrame) -> None:
        """Send a frame to the worker if it is to be answered, or belongs to a history."""
        execution, delay_ns, gap_ns = self._execution, self._delay_ns, self._plan.forecast.gap_ns
        busy = bool(self._in_flight)
        arrived, now_ns = sent.arrived.seq if sent.HasField("arrived") else 0, self._body.now_ns
        if not execution.may_answer(resting=sent.resting, arrived=arrived, now_ns=now_ns, busy=busy):
            if self._plan.keeps_history:
                self._send(replace(frame, seen_only=True))
            return
        execution.observe(delay_ns, gap_ns)
        how = execution.answer(frame.seq, resting=sent.resting, delay_ns=delay_ns, gap_ns=gap_ns)
        self._in_flight[frame.seq] = how
        playing = sent.playing if sent.HasField("playing") else None
        self._send(
            replace(
                frame,
                playing=None if playing is None else Playing(playing.seq, playing.step, playing.start_ns),
                delay_ns=delay_ns,
                start_delay_ns=max(delay_ns, 1) if how is not None and how.from_arrival else 0,
                rate_percent=how.rate_percent if how is not None else FULL_RATE,
            )
        )


def _opened(schema: ActionSchema) -> pb.Opened:
    """The service's answer to Open."""
    return pb.Opened(
        session=SESSION,
        epoch=EPOCH,
        schema=schema_message(schema),
        mode=pb.MODE_SERIAL,
        valid_for_ms=LEAST_VALID_MS,
    )


def _action(result: FrameResult, stamp_ns: int, how: AnswerExecution | None) -> pb.Action:
    """The action that control sends for a result."""
    chunk = result.chunk
    valid_ms = LEAST_VALID_MS if how is None else max(LEAST_VALID_MS, -(-how.valid_ns // 1_000_000))
    return pb.Action(
        epoch=result.epoch,
        seq=result.seq,
        stamp_ns=stamp_ns,
        command=pb.COMMAND_ACT if result.valid else pb.COMMAND_HOLD,
        reason="" if result.valid else Reason.POLICY_OUTPUT_INVALID,
        valid_for_ms=valid_ms,
        max_age_ms=valid_ms + -(-(result.queue_ns + result.inference_ns) // 1_000_000),
        values=chunk.values,
        horizon=chunk.horizon,
        step_ms=chunk.step_ms,
        timings=pb.Timings(queue_ns=result.queue_ns, inference_ns=result.inference_ns, passes=result.passes),
        settled=result.settled,
        continues=result.report.continues,
        conditioned_steps=result.report.conditioned_steps,
        execution=EXECUTION_NUMBERS[None if how is None else how.execution],
        rate=0.0 if how is None else how.rate_percent / FULL_RATE,
        rows=0 if how is None else how.rows,
        from_arrival=how is not None and how.from_arrival,
    )
