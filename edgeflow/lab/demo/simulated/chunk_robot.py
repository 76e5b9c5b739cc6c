"""A robot that executes chunks in simulated time, using the SDK's own session with its watchdog, validity and
blending.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from edgeflow.ipc.messages import FrameResult
from edgeflow.lab.demo.simulated.camera import EPOCH, SESSION, SimulatedCamera
from edgeflow.lab.demo.simulated.robot import DelayedAnswers, Send, SimulatedBody, SimulatedRobot, Ticks
from edgeflow.lab.demo.world.robot import state_of
from edgeflow.scheduler.answer_ages import AnswerAges
from edgeflow_client.actions import Action, Directive
from edgeflow_client.connection.outgoing import OutgoingMessages
from edgeflow_client.connection.wire import SessionSettings, schema_message
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.session import ClientSession
from edgeflow_client.trajectory import Playing
from edgeflow_client.types import ActionSchema, StateSpec

VALID_MS: Final = 250  # validity of a chunk, the service's default (config.sections.TimingConfig.action_ttl_ms)
START_NS: Final = 1_000_000_000  # start of an episode on the robot's clock: a stamp of 0 is not valid
RESUME_WITHIN_NS: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class _BodyClock:
    """The robot's clock (edgeflow_client.clock.Clock)."""

    body: SimulatedBody

    def now_ns(self) -> int:
        return START_NS + self.body.now_ns


class ChunkRobot(SimulatedRobot):
    """Captures a frame every period and executes what the SDK returns.

    continues: answers continue the chunk in execution (real-time chunking), if the policy can. forecast_ns: the
    greatest age of an answer in the service's forecast.
    """

    def __init__(
        self,
        body: SimulatedBody,
        camera: SimulatedCamera,
        answers: DelayedAnswers,
        send: Send,
        schema: ActionSchema,
        *,
        period_ns: int,
        state: tuple[StateSpec, ...],
        continues: bool,
        forecast_ns: int,
    ) -> None:
        super().__init__(body, camera, answers, send)
        self._has_state = bool(state)
        self._period_ns = period_ns
        self._captured: dict[int, int] = {}
        self._ticks = Ticks()
        self._continues = continues
        self._forecast_ns = forecast_ns
        self._ages = AnswerAges()
        self._directive: Directive | None = None
        self._playing = 0
        agreed = SessionSettings(cameras=(), control_period_s=period_ns / 1e9, state=state)
        self._session = ClientSession(agreed, body.sim.instruction, _BodyClock(body), RESUME_WITHIN_NS)
        self._outgoing = OutgoingMessages(self._session.opening())
        next(self._outgoing)  # Open
        self._session.stream_opened(_opened(schema), self._outgoing)
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

    def receive(self, message: FrameResult) -> None:
        """Receive an answer now."""
        captured_ns = self._captured[message.seq]
        if not self._answers.delays(message, captured_ns=captured_ns, now_ns=self._body.now_ns):
            self._deliver(message)

    def _deliver(self, message: FrameResult) -> None:
        """Pass a result to the SDK, in the form that control sends, and execute it if the SDK accepts it."""
        self._ages.sent(message.seq, message.queue_ns + message.inference_ns)
        action = _action(message, START_NS + self._captured[message.seq])
        self._session.stream_message(pb.ServerMessage(action=action))
        self._obey()

    def _obey(self) -> None:
        directive = self._session.directive()
        if directive is self._directive:
            return
        self._directive = directive
        if directive.action is None:
            self._body.sim.hold()
            return
        self._play(directive.action)

    def _play(self, action: Action) -> None:
        before, target = self._body.course, action.target()
        if target.pose is not None:
            self._body.sim.command(target.pose, target.values["gripper"])
        if action.seq != self._playing:
            self._playing = action.seq
            captured_ns, passes = self._captured[action.seq], action.timings.passes
            self._body.note(before, captured_ns=captured_ns, passes=passes, settled=action.settled)

    @property
    def _next_frame_ns(self) -> int:
        return self._camera.frames * self._period_ns

    def _capture(self) -> None:
        sim = self._body.sim
        pose = sim.pose()
        state = [float(each) for each in state_of(pose, sim.aperture)] if self._has_state else []
        seq = self._session.push([], state, pose, "", START_NS + self._body.now_ns)
        sent = next(self._outgoing).frame  # except the pixels, which the camera has
        self._captured[seq] = self._body.now_ns
        frame = self._camera.capture(state, sent.stamp_ns)
        if self._continues:
            if sent.HasField("arrived"):
                self._ages.arrived(sent.arrived.seq, sent.arrived.age_ns)
            playing = Playing(sent.playing.seq, sent.playing.step) if sent.HasField("playing") else None
            delay_ns = self._ages.expected_ns(self._forecast_ns)
            frame = replace(frame, playing=playing, delay_ns=delay_ns, unplayed_from=int(playing is None))
        self._send(frame)


def _opened(schema: ActionSchema) -> pb.Opened:
    """The service's answer to Open."""
    return pb.Opened(
        session=SESSION,
        epoch=EPOCH,
        schema=schema_message(schema),
        mode=pb.MODE_SERIAL,
        valid_for_ms=VALID_MS,
    )


def _action(result: FrameResult, stamp_ns: int) -> pb.Action:
    """The action that control sends for a result."""
    chunk = result.chunk
    return pb.Action(
        epoch=result.epoch,
        seq=result.seq,
        stamp_ns=stamp_ns,
        command=pb.COMMAND_ACT if result.valid else pb.COMMAND_HOLD,
        reason="" if result.valid else Reason.POLICY_OUTPUT_INVALID,
        valid_for_ms=VALID_MS,
        max_age_ms=VALID_MS + -(-(result.queue_ns + result.inference_ns) // 1_000_000),
        values=chunk.values,
        horizon=chunk.horizon,
        step_ms=chunk.step_ms,
        timings=pb.Timings(queue_ns=result.queue_ns, inference_ns=result.inference_ns, passes=result.passes),
        settled=result.settled,
        continues=result.report.continues,
        conditioned_steps=result.report.conditioned_steps,
    )
