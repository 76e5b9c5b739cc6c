"""The driver of a session: connects the state machine to the decoder threads, the worker's socket and the stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from edgeflow.config import LimitsConfig
from edgeflow.ipc.messages import ChangePace, Message, OpenSession
from edgeflow.ipc.payloads import Payloads
from edgeflow.scheduler.pace import pace_text
from edgeflow.service.grpc.codec import Received, Unparsable, check_frame
from edgeflow.service.grpc.fields import check_text, refuse_unknown_fields
from edgeflow.service.observation.pixels import decode_frame, raw_pixels
from edgeflow.service.observe.log import EventLog
from edgeflow.service.observe.metrics import Metrics
from edgeflow.service.sessions.admission import OVERHEAD_NS, SessionPlan
from edgeflow.service.sessions.decoding import Decoders
from edgeflow.service.sessions.events import ActionEvent, End, Event
from edgeflow.service.sessions.requests import CheckedFrame, OpenRequest
from edgeflow.service.sessions.session import Session
from edgeflow_client.clock import Clock
from edgeflow_client.errors import AlreadyExists, InvalidArgument, RequestError, Unavailable
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import Command, Mode

MAX_ELSEWHERE_NS = 10_000_000_000  # that a frame may have spent in another process of this machine


class WorkerPort(Protocol):
    """The connection to the worker."""

    @property
    def writable(self) -> bool: ...

    def send(self, message: Message) -> None: ...


class SessionRunner:
    """Drives one session. Everything but decoding runs on the loop; call `pump` after any change to the session."""

    def __init__(
        self,
        session: Session,
        plan: SessionPlan,
        *,
        port: WorkerPort,
        pool: Executor,
        clock: Clock,
        limits: LimitsConfig,
        decoders: Decoders,
        metrics: Metrics,
        log: EventLog,
        want_ring: Callable[[SessionRunner], None],
        alone: Callable[[SessionRunner], bool],
    ) -> None:
        self.session = session
        self._port = port
        self._pool = pool
        self._clock = clock
        self._limits = limits
        self._decoders = decoders
        self._metrics = metrics
        self._log = log
        self._want_ring = want_ring
        self._alone = alone
        self._turn: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._last_frame_ns: int | None = None
        self._taken: list[Event] = []
        self._adopt(plan)
        if plan.mode is Mode.SPECULATIVE and plan.pace.speculation is None:
            session.notify("mode", "this policy drafts no tokens, so speculative is serial")

    def receive(self, received: Received[pb.ClientMessage] | Unparsable) -> None:
        """Handle a message after Open; the stream continues whatever it contains."""
        if self.session.ended is not None:
            return
        if isinstance(received, Unparsable):
            self._refuse(
                0, InvalidArgument("is not a valid protobuf message", field="message", reason=Reason.MESSAGE_UNPARSABLE)
            )
            return
        match received.message.WhichOneof("kind"):
            case "frame":
                self.receive_frame(received)
            case "reset":
                self._reset(received.message.reset)
            case "close":
                self.session.end(End("OK", Reason.CLIENT_CLOSED))
            case "open":
                error = AlreadyExists("this stream already has a session", field="open", reason=Reason.SESSION_OPEN)
                self.session.reject_message(error, self._clock.now_ns())
            case _:
                self._refuse(
                    0,
                    InvalidArgument(
                        "is empty: send a frame, reset or close", field="message", reason=Reason.MESSAGE_EMPTY
                    ),
                )
        self.pump()

    def receive_frame(self, received: Received[pb.ClientMessage]) -> None:
        """Check the order, unknown fields and contents of a frame, then offer or refuse it."""
        frame = received.message.frame
        now_ns = self._clock.now_ns()
        self._observe_gap(now_ns)
        try:
            self.session.admit(frame.seq, frame.stamp_ns, now_ns)
            refuse_unknown_fields(received.message, "message")
            checked = check_frame(received, self.session.request, self._limits)
            self._count_chunks(checked)
            self.session.offer(checked, now_ns)
        except RequestError as error:
            self._refuse(frame.seq, error)
        self.pump()

    def receive_checked(self, frame: CheckedFrame, received_ns: int | None = None) -> None:
        """Check the order of a frame whose contents are checked already, then offer or refuse it.

        received_ns: when it reached this machine, so that time spent elsewhere counts in its age; None = now.
        """
        now_ns = self._clock.now_ns()
        since_ns = now_ns if received_ns is None else min(max(received_ns, now_ns - MAX_ELSEWHERE_NS), now_ns)
        try:
            self.session.admit(frame.seq, frame.stamp_ns, now_ns, since_ns)
            self._count_chunks(frame)
            self.session.offer(frame, now_ns, since_ns)
        except RequestError as error:
            self._refuse(frame.seq, error)
        self.pump()

    def change_plan(self, plan: SessionPlan) -> None:
        """Adopt a new plan: another pace from the next frame on, or only another forecast."""
        if self._replace_plan(plan):
            self._port.send(ChangePace(self.session.number, plan.pace))
            self.pump()

    def reopen(self, plan: SessionPlan) -> None:
        """Open the session's ring again, at the pace that fits now."""
        self._replace_plan(plan)
        self.open_ring()

    def open_ring(self) -> None:
        """Request the session's ring, from a new worker or after a silence."""
        self.session.ring_asked()
        self._port.send(open_session(self.session.number, self.session.epoch, self.session.request, self.plan))

    def pump(self) -> None:
        """Advance everything that can: commands, frames to the worker, frames to the decoder, events to the stream."""
        session = self.session
        while session.commands:
            self._port.send(session.commands.popleft())
        if session.wants_ring:
            self._want_ring(self)
        now_ns = self._clock.now_ns()
        if self._port.writable and (ready := session.start_sending(now_ns)) is not None:
            self._port.send(ready)
        if (turn_ns := session.turn_ns(now_ns)) is not None:
            self._take_turn(turn_ns, now_ns)
        if session.unread and session.ended is None:
            session.end(End("RESOURCE_EXHAUSTED", Reason.SLOW_READER, "the robot reads its answers too slowly"))
            self._metrics.watchdog_fired.labels("slow_reader").inc()
        if session.has_events or session.ended is not None:
            self._changed.set()

    async def next_events(self) -> list[Event]:
        """Wait for events; empty once the session has ended and all events were taken."""
        self._count_taken()
        while not self.session.has_events and self.session.ended is None:
            self._changed.clear()
            await self._changed.wait()
        return self.take_events()

    def take_events(self) -> list[Event]:
        """Take the pending events. They are counted at the next call, so that metrics do not delay the robot."""
        self._count_taken()
        self._taken = self.session.take(self._clock.now_ns())
        return self._taken

    def _count_taken(self) -> None:
        """Count the events taken last in the metrics; log HOLD and STOP."""
        events, self._taken = self._taken, []
        for event in events:
            self._metrics.observe(event)
            if isinstance(event, ActionEvent) and event.command is not Command.ACT:
                number, command = self.session.number, event.command.value
                self._log.event(command, session=number, epoch=event.epoch, reason=event.reason)

    def _take_turn(self, turn_ns: int, now_ns: int) -> None:
        """Decode the waiting frame, or come back when it has its turn."""
        frame = self.session.start_decoding(now_ns, alone=turn_ns > now_ns and self._alone(self))
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if frame is not None:
            self._decode(frame)
        else:
            self._turn = asyncio.get_running_loop().call_later((turn_ns - now_ns) / 1e9, self.pump)

    def _decode(self, frame: CheckedFrame) -> None:
        pixels = raw_pixels(frame, self.session.request) if frame.pixels is None else frame.pixels
        if pixels is not None:
            self.session.decoded(pixels, frame.decode_ns)
            self.pump()
            return
        loop = asyncio.get_running_loop()
        try:
            future = loop.run_in_executor(self._pool, _timed_decode, frame, self.session.request)
        except (MemoryError, RuntimeError) as error:
            self._decoder_failed(error)
        else:
            future.add_done_callback(self._decoded)

    def _decoded(self, future: asyncio.Future[tuple[Payloads | RequestError, int, int]]) -> None:
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            self._decoder_failed(error)
            return
        payload, decode_ns, processor_ns = future.result()
        number = self.session.number
        if not isinstance(payload, RequestError):
            self._decoders.observe(number, processor_ns)
        self.session.decoding_took(processor_ns, self._decoders.allowance_ns(number), self._clock.now_ns())
        if isinstance(payload, RequestError):
            self.session.decode_failed(payload, self._clock.now_ns())
        else:
            self.session.decoded(payload, decode_ns)
        self.pump()

    def _decoder_failed(self, error: BaseException) -> None:
        text = f"internal error, incident {self._log.incident('decode', error)}"
        failed = Unavailable(text, field="frame.images[0]", reason=Reason.IMAGE_UNREADABLE)
        self.session.decode_failed(failed, self._clock.now_ns())
        self.pump()

    def _reset(self, message: pb.Reset) -> None:
        try:
            refuse_unknown_fields(message, "reset")
            text = check_text(message.instruction, "reset.instruction", self._limits) if message.instruction else ""
        except RequestError as error:
            self.session.reject_message(error, self._clock.now_ns())
        else:
            self.session.request_reset(text, self._clock.now_ns())

    def _refuse(self, seq: int, error: RequestError) -> None:
        self.session.refuse(seq, error, self._clock.now_ns())
        if error.code == "RESOURCE_EXHAUSTED" or error.reason.endswith(("_TOO_LARGE", "_TOO_LONG")):
            self._metrics.limit_rejections.labels(error.reason).inc()
        self.pump()

    def _replace_plan(self, plan: SessionPlan) -> bool:
        """Adopt a plan; True if the pace changed, of which the robot is notified."""
        before = self.plan.pace
        self._adopt(plan)
        if plan.pace == before:
            return False
        self.session.notify("depth", f"the forecasts changed: {pace_text(plan.pace)} instead of {pace_text(before)}")
        return True

    def _adopt(self, plan: SessionPlan) -> None:
        self.plan = plan
        self.session.speculation = plan.pace.speculation

    def _count_chunks(self, frame: CheckedFrame) -> None:
        """Count a report that the robot plays what it never got, and one of a chunk that came too late to fit."""
        playing, arrived = frame.playing, frame.arrived
        if playing is not None and not self.session.answers.sent.has(playing.seq, playing.step):
            self._metrics.unknown_chunks.inc()
        if arrived is not None and self.session.answers.arrived(arrived.seq, arrived.age_ns):
            self._metrics.late_chunks.inc()

    def _observe_gap(self, now_ns: int) -> None:
        if self._last_frame_ns is not None:
            self._metrics.ingress_gap.observe((now_ns - self._last_frame_ns) / 1e9)
        self._last_frame_ns = now_ns


def open_session(
    number: int, epoch: int, request: OpenRequest, plan: SessionPlan, instruction: str = ""
) -> OpenSession:
    """The message that opens a session at the worker. instruction: checked there, not stored."""
    return OpenSession(
        session=number,
        epoch=epoch,
        pace=plan.pace,
        unnorm_key=request.unnorm_key,
        instruction=instruction,
        deadline_ns=plan.robot.deadline_ns,
        patience_ns=_patience_ns(request, plan.mode),
        period_ns=plan.robot.period_ns,
        rtc=request.rtc,
    )


def _patience_ns(request: OpenRequest, mode: Mode) -> int:
    """The age beyond which the worker may give frames that draft up; 0 = none, or there never are any."""
    if request.max_action_age_ns is None or mode not in (Mode.SPECULATIVE, Mode.AUTO):
        return 0
    return max(request.max_action_age_ns - OVERHEAD_NS, 1)


def _timed_decode(frame: CheckedFrame, opened: OpenRequest) -> tuple[Payloads | RequestError, int, int]:
    """Decode a frame, in a decoder thread, and measure time and processor time. A refusal is returned, so that only
    bugs are raised.
    """
    started_ns, thread_ns = time.perf_counter_ns(), time.thread_time_ns()
    try:
        payload: Payloads | RequestError = decode_frame(frame, opened)
    except RequestError as error:
        payload = error
    return payload, time.perf_counter_ns() - started_ns, time.thread_time_ns() - thread_ns
