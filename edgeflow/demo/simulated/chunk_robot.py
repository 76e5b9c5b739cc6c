"""A robot that plays chunks in simulated time, by the SDK's own session with its watchdog, validity and blending."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from edgeflow.client.actions import Action, Directive
from edgeflow.client.connection.outgoing import Outgoing
from edgeflow.client.connection.wire import SessionSettings
from edgeflow.client.session import Session
from edgeflow.clock import ManualClock
from edgeflow.demo.simulated.camera import EPOCH, SESSION, Camera, Delay
from edgeflow.demo.simulated.episodes import Acted
from edgeflow.demo.world.proprioception import state_of
from edgeflow.demo.world.sim import RobotSim
from edgeflow.demo.world.task import Outcome
from edgeflow.ipc.messages import FrameDropped, FrameResult, Message
from edgeflow.reasons import Reason
from edgeflow.rpc import control_pb2 as pb
from edgeflow.scheduler.answer_ages import AnswerAges
from edgeflow.trajectory import Playing
from edgeflow.types import ActionSchema, StateSpec
from edgeflow.worker.worker import Worker

TICK_NS: Final = 10_000_000  # between two looks at the SDK's directive
VALID_MS: Final = 250  # of a chunk, as the service's default (config.TimingConfig.action_ttl_ms)
START_NS: Final = 1_000_000_000  # of an episode on the robot's clock, whose stamps are not 0
RESUME_WITHIN_NS: Final = 2_000_000_000


class ChunkRobot:
    """Captures a frame every period and plays what the SDK hands out.

    now_ns: since the episode began. overtaken: frames that newer ones left behind. continues: answers continue the
    chunk being played (real-time chunking), where the policy can.
    """

    def __init__(
        self,
        sim: RobotSim,
        worker: Worker,
        camera: Camera,
        schema: ActionSchema,
        *,
        period_ns: int,
        delay: Delay | None,
        state: tuple[StateSpec, ...],
        continues: bool,
    ) -> None:
        self.now_ns = 0
        self.overtaken = 0
        self.acted: list[Acted] = []
        self._sim = sim
        self._start_s = sim.time
        self._worker = worker
        self._camera = camera
        self._has_state = bool(state)
        self._period_ns = period_ns
        self._delay = delay
        self._draws = np.random.default_rng(delay.seed if delay else 0)
        self._late: list[tuple[int, FrameResult]] = []
        self._captured: dict[int, int] = {}
        self._ticked = 0
        self._continues = continues
        self._ages = AnswerAges()
        self._clock = ManualClock()
        self._clock.advance_to_ns(START_NS)
        self._directive: Directive | None = None
        self._playing = 0
        settings = _settings(period_ns, state)
        self._session = Session(settings, sim.instruction, self._clock, RESUME_WITHIN_NS)
        self._outgoing = Outgoing(self._session.opening())
        next(self._outgoing)  # Open
        self._session.stream_opened(_opened(schema), self._outgoing)
        self._capture()

    @property
    def late(self) -> int:
        """Chunks that came later than they were made for."""
        return self._session.flight.late

    @property
    def late_played(self) -> int:
        """Late chunks that were played because there was nothing else."""
        return self._session.flight.late_played

    def next_event_ns(self) -> int:
        """The next event while no pass runs: a tick, a frame, an action that becomes due, or a drain that does."""
        wake_at_ns = self._worker.wake_at_ns()
        return min(self._own_event_ns, wake_at_ns if wake_at_ns is not None else self._next_frame_ns)

    def live_until(self, instant_ns: int) -> None:
        """Advance physics, camera, the SDK and delayed actions to an instant."""
        while self._own_event_ns <= instant_ns and self._sim.outcome is Outcome.RUNNING:
            self._move_to(self._own_event_ns)
            self._deliver_due()
            if self._next_tick_ns <= self.now_ns:
                self._ticked += 1
                self._obey()
            if self._next_frame_ns <= self.now_ns:
                self._capture()
        self._move_to(instant_ns)

    def receive(self, message: Message) -> None:
        """Note what became of a frame, now."""
        if isinstance(message, FrameDropped):
            self.overtaken += message.reason == Reason.OVERTAKEN
        elif isinstance(message, FrameResult) and self._delay is None:
            self._deliver(message)
        elif isinstance(message, FrameResult) and self._delay is not None:
            jitter_ns = round(self._delay.jitter_ns * self._draws.uniform(-1.0, 1.0))
            due_ns = self._captured[message.seq] + self._delay.mean_ns + jitter_ns
            self._late.append((max(due_ns, self.now_ns), message))

    def _deliver_due(self) -> None:
        due = [message for due_ns, message in self._late if due_ns <= self.now_ns]
        self._late = [each for each in self._late if each[0] > self.now_ns]
        for message in due:
            self._deliver(message)

    def _deliver(self, message: FrameResult) -> None:
        """Hand a result to the SDK, as control sends it, and play it if the SDK does."""
        self._ages.sent(message.seq, message.queue_ns + message.inference_ns)
        action = _action(message, START_NS + self._captured[message.seq])
        self._session.stream_said(pb.ServerMessage(action=action))
        self._obey()

    def _obey(self) -> None:
        directive = self._session.directive()
        if directive is self._directive:
            return
        self._directive = directive
        if directive.action is None:
            self._sim.hold()
            return
        self._play(directive.action)

    def _play(self, action: Action) -> None:
        sim, target = self._sim, action.target()
        position, velocity = sim.goal().position, sim.commanded_velocity()
        if target.pose is not None:
            sim.command(target.pose, target.values["gripper"])
        if action.seq == self._playing:
            return
        self._playing = action.seq
        self.acted.append(
            Acted(
                captured_ns=self._captured[action.seq],
                arrived_ns=self.now_ns,
                passes=action.timings.passes,
                settled=action.settled,
                jump_m=math.dist(sim.goal().position, position),
                kick_m_s=math.dist(sim.commanded_velocity(), velocity),
            )
        )

    @property
    def _next_frame_ns(self) -> int:
        return self._camera.frames * self._period_ns

    @property
    def _next_tick_ns(self) -> int:
        return (self._ticked + 1) * TICK_NS

    @property
    def _own_event_ns(self) -> int:
        return min([self._next_frame_ns, self._next_tick_ns, *(due_ns for due_ns, _ in self._late)])

    def _move_to(self, instant_ns: int) -> None:
        self._sim.step(max(0.0, self._start_s + instant_ns / 1e9 - self._sim.time))
        self.now_ns = max(self.now_ns, instant_ns)
        self._clock.advance_to_ns(START_NS + self.now_ns)

    def _capture(self) -> None:
        pose = self._sim.pose()
        state = [float(each) for each in state_of(pose, self._sim.aperture)] if self._has_state else []
        seq = self._session.push([], state, pose, "", self._clock.now_ns())
        sent = next(self._outgoing).frame  # but for the pixels, which the camera has
        self._captured[seq] = self.now_ns
        frame = self._camera.capture(state, sent.stamp_ns)
        if self._continues:
            if sent.HasField("arrived"):
                self._ages.arrived(sent.arrived.seq, sent.arrived.age_ns)
            playing = Playing(sent.playing.seq, sent.playing.step) if sent.HasField("playing") else None
            frame = replace(frame, playing=playing, delay_ns=self._ages.expected_ns)
        self._worker.inbox.put(frame)


def _settings(period_ns: int, state: tuple[StateSpec, ...]) -> SessionSettings:
    return SessionSettings(
        cameras=(),
        control_period_s=period_ns / 1e9,
        mode=None,
        max_action_age_s=None,
        model="",
        proprio_names=(),
        unnorm_key="",
        state=state,
    )


def _opened(schema: ActionSchema) -> pb.Opened:
    """The service's answer to Open."""
    columns = zip(schema.names, schema.units, schema.low, schema.high, schema.relative, strict=True)
    return pb.Opened(
        session=SESSION,
        epoch=EPOCH,
        schema=pb.ActionSchema(
            dimensions=[
                pb.ActionDimension(name=name, unit=unit, low=low, high=high, relative=relative)
                for name, unit, low, high, relative in columns
            ],
            frame=schema.frame,
            rotation=schema.rotation,
            control_rate_hz=schema.control_rate_hz,
            horizon=schema.horizon,
            step_ms=schema.step_ms,
        ),
        mode=pb.MODE_SERIAL,
        valid_for_ms=VALID_MS,
        arrivals=True,
    )


def _action(result: FrameResult, stamp_ns: int) -> pb.Action:
    """The action that control makes of a result."""
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
