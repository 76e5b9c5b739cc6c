"""The driver of a session: it connects the state machine to decoder threads, the worker's socket and the stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Protocol

from edgeflow.ipc.framing import Payloads
from edgeflow.ipc.messages import ChangePace, Message, OpenSession
from edgeflow.scheduler.pace import pace_text
from edgeflow.service.observation.pixels import decode_frame, raw_pixels
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow.service.observe.log import EventLog
from edgeflow.service.security.auth import Caller
from edgeflow.service.sessions.admission import OVERHEAD_NS, SessionPlan
from edgeflow.service.sessions.capacity import Decoders
from edgeflow.service.sessions.frames import End, Event
from edgeflow.service.sessions.observers import ObservedFrame, Observers, OpenedSession
from edgeflow.service.sessions.session import Session
from edgeflow.version import __version__
from edgeflow_client.clock import Clock
from edgeflow_client.errors import RequestError, Unavailable
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Mode

MAX_ELSEWHERE_NS = 10_000_000_000  # the most that a frame may have waited in another process


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
        decoders: Decoders,
        observers: Observers,
        log: EventLog,
        want_ring: Callable[[SessionRunner], None],
        alone: Callable[[SessionRunner], bool],
    ) -> None:
        self.session = session
        self._port = port
        self._pool = pool
        self._clock = clock
        self._decoders = decoders
        self._observers = observers
        self._log = log
        self._want_ring = want_ring
        self._alone = alone
        self._turn: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._last_frame_ns: int | None = None
        self._taken: list[Event] = []
        self._ignores = False
        self._adopt(plan)
        if plan.mode is Mode.SPECULATIVE and plan.pace.speculation is None:
            session.notify("mode", "this policy drafts no tokens, so speculative is serial")

    def opened(self, caller: Caller, *, single: bool) -> OpenedSession:
        """The session for observers."""
        session = self.session
        return OpenedSession(
            number=session.number,
            request=session.request,
            plan=self.plan,
            caller=caller,
            schema=session.robot_schema,
            single=single,
        )

    def receive_frame(
        self, seq: int, stamp_ns: int, contents: Callable[[], CheckedFrame], received_ns: int | None = None
    ) -> None:
        """Check the order of a frame and then its contents; offer it, or reject it.

        contents: returns the checked frame, or raises a RequestError. received_ns: its arrival on this machine, so that
        time in another process counts in its age; None = now.
        """
        now_ns = self._clock.now_ns()
        # The time comes from another process, and counts only within what is plausible.
        since_ns = now_ns if received_ns is None else min(max(received_ns, now_ns - MAX_ELSEWHERE_NS), now_ns)
        try:
            self.session.admit(seq, stamp_ns, now_ns, since_ns)
            frame = contents()
            gap_ns = now_ns - self._last_frame_ns if self._last_frame_ns is not None else 0
            self._last_frame_ns = now_ns
            seen = self._seen(frame, gap_ns, now_ns - since_ns)
            self.session.offer(frame, now_ns, since_ns)
            self._observers.observed(seen(epoch=self.session.epoch, instruction=self.session.instruction))
        except RequestError as error:
            self.reject(seq, error)
        self.pump()

    def reject(self, seq: int, error: RequestError) -> None:
        """Answer a frame with an error, or another message with seq 0; too many of them end the session."""
        self.session.reject(seq, error, self._clock.now_ns())
        self.pump()

    def reject_message(self, error: RequestError) -> None:
        """Answer a message about the session with an error."""
        self.session.reject_message(error, self._clock.now_ns())
        self.pump()

    def ignore(self, fields: Sequence[str]) -> None:
        """Notify the robot and the log, once, that fields of its messages are unknown here and were ignored."""
        if fields and not self._ignores:
            self._ignores = True
            self._log.event("fields_ignored", session=self.session.number, fields=fields)
            self.session.notify("ignored", f"this service (version {__version__}) does not know {', '.join(fields)}")

    def reset(self, instruction: str) -> None:
        """Begin a new epoch; instruction: "" keeps the present one."""
        self.session.request_reset(instruction, self._clock.now_ns())
        self.pump()

    def end(self, end: End) -> None:
        """End the session."""
        self.session.end(end)
        self.pump()

    def change_plan(self, plan: SessionPlan) -> None:
        """Adopt a new plan: another pace from the next frame on, or just another forecast."""
        self._change_pace(plan, "the forecasts changed", "depth")

    def change_mode(self, request: OpenRequest, plan: SessionPlan) -> None:
        """Adopt the mode that an operator chose: the request with it, and its plan, from the next frame on.

        A parked session has no ring yet, and is planned again when it gets one.
        """
        self.session.request = request
        self._change_pace(plan, "an operator chose another mode", "mode")

    def reopen(self, plan: SessionPlan) -> None:
        """Open the session's ring again, at the pace that fits now."""
        self._replace_plan(plan, "the forecasts changed", "depth")
        self.open_ring()

    def open_ring(self) -> None:
        """Request the session's ring, from a new worker or after a silence."""
        self.session.ring_asked()
        self._port.send(open_session(self.session.number, self.session.epoch, self.session.request, self.plan))

    def pump(self) -> None:
        """Advance everything that can advance: commands, frames to the worker and the decoder, events to the stream."""
        session = self.session
        while session.commands:
            self._port.send(session.commands.popleft())
        if session.ring_wanted:
            self._want_ring(self)
        now_ns = self._clock.now_ns()
        if self._port.writable and (ready := session.start_sending(now_ns)) is not None:
            self._port.send(ready)
        if (turn_ns := session.turn_ns(now_ns)) is not None:
            self._take_turn(turn_ns, now_ns)
        if session.outbox_full and session.ended is None:
            session.end(End("RESOURCE_EXHAUSTED", Reason.SLOW_READER, "the robot reads its answers too slowly"))
        if session.has_events or session.ended is not None:
            self._changed.set()

    async def next_events(self) -> list[Event]:
        """Wait for events; empty once the session has ended and all events were taken."""
        self._report_taken()
        while not self.session.has_events and self.session.ended is None:
            self._changed.clear()
            await self._changed.wait()
        return self.take_events()

    def take_events(self) -> list[Event]:
        """Take the pending events. Observers see them at the next call, so as not to delay the robot."""
        self._report_taken()
        self._taken = self.session.take(self._clock.now_ns())
        return self._taken

    def _report_taken(self) -> None:
        events, self._taken = self._taken, []
        for event in events:
            self._observers.sent(self.session.number, event)

    def _take_turn(self, turn_ns: int, now_ns: int) -> None:
        """Decode the waiting frame, or set a timer for its turn, or for the time from which it need not wait for it."""
        session, early = self.session, False
        alone = turn_ns > now_ns and self._alone(self)
        if turn_ns > now_ns and not alone:
            frame_ns = self._decoders.early_ns(self.plan.cameras, session.number)
            early_ns = session.rates.early_ns(frame_ns, now_ns)
            if early_ns is not None:
                early, turn_ns = early_ns <= now_ns, min(turn_ns, early_ns)
        frame = session.start_decoding(now_ns, alone=alone, early=early)
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if frame is None:
            self._turn = asyncio.get_running_loop().call_later((turn_ns - now_ns) / 1e9, self.pump)
            return
        if early:
            session.rates.early.spend(frame_ns, now_ns)
        self._decode(frame)

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
        self.session.rates.decoding.spend(processor_ns, self._decoders.allowance_ns(number), self._clock.now_ns())
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

    def _change_pace(self, plan: SessionPlan, why: str, kind: str) -> None:
        if self._replace_plan(plan, why, kind) and not self.session.parked:
            patience_ns = _patience_ns(self.session.request, plan.mode)
            self._port.send(ChangePace(self.session.number, plan.pace, patience_ns))
        self.pump()

    def _replace_plan(self, plan: SessionPlan, why: str, kind: str) -> bool:
        """Adopt a plan; True if the pace changed. The robot then gets a notice of this kind."""
        before = self.plan.pace
        self._adopt(plan)
        if plan.pace == before:
            return False
        self.session.notify(kind, f"{why}: {pace_text(plan.pace)} instead of {pace_text(before)}")
        return True

    def _adopt(self, plan: SessionPlan) -> None:
        self.plan = plan
        self.session.speculation = plan.pace.speculation

    def _seen(self, frame: CheckedFrame, gap_ns: int, waited_ns: int) -> Callable[..., ObservedFrame]:
        """Makes the frame for observers, with checks of the chunks that it reports, once the session has taken it."""
        playing, arrived, answers = frame.playing, frame.arrived, self.session.answers
        return partial(
            ObservedFrame,
            session=self.session.number,
            frame=frame,
            gap_ns=gap_ns,
            waited_ns=waited_ns,
            unknown_chunk=playing is not None and not answers.sent.has(playing.seq, playing.step),
            late_chunk=arrived is not None and answers.arrived(arrived.seq, arrived.age_ns),
            executed_age_ns=answers.sent.executed_age_ns(frame),
            execution=choice.execution if (choice := answers.execution.now) is not None else None,
        )


def open_session(
    number: int, epoch: int, request: OpenRequest, plan: SessionPlan, instruction: str = ""
) -> OpenSession:
    """The message that opens a session in the worker. instruction: checked there, but not stored."""
    return OpenSession(
        session=number,
        epoch=epoch,
        pace=plan.pace,
        unnorm_key=request.unnorm_key,
        instruction=instruction,
        deadline_ns=plan.robot.deadline_ns,
        patience_ns=_patience_ns(request, plan.mode),
        period_ns=plan.robot.period_ns,
        continues=request.continues,
    )


def _patience_ns(request: OpenRequest, mode: Mode) -> int:
    """The age after which the worker may give up frames with drafts; 0 = never, or no drafts."""
    if request.max_action_age_ns is None or mode not in (Mode.SPECULATIVE, Mode.AUTO):
        return 0
    return max(request.max_action_age_ns - OVERHEAD_NS, 1)


def _timed_decode(frame: CheckedFrame, opened: OpenRequest) -> tuple[Payloads | RequestError, int, int]:
    """Decode a frame, in a decoder thread, and measure time and processor time. An error is returned, so that only
    bugs are raised.
    """
    started_ns, thread_ns = time.perf_counter_ns(), time.thread_time_ns()
    try:
        payload: Payloads | RequestError = decode_frame(frame, opened)
    except RequestError as error:
        payload = error
    return payload, time.perf_counter_ns() - started_ns, time.thread_time_ns() - thread_ns
