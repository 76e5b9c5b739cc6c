"""One call of Control.Stream: Open, then reading and writing side by side until the session ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import grpc

from edgeflow.config.sections import LimitsConfig
from edgeflow.scheduler.execution import FULL_RATE, AnswerExecution
from edgeflow.scheduler.pace import served_mode
from edgeflow.service.errors import error_of_code
from edgeflow.service.frontends.grpc.checks import check_open, ignored_fields
from edgeflow.service.frontends.grpc.codec import ParsedMessage, Unparsable, check_frame
from edgeflow.service.observation.checks import check_text
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest, trace_context
from edgeflow.service.security.auth import Caller
from edgeflow.service.sessions.admission import SessionPlan
from edgeflow.service.sessions.answers import SessionAnswers
from edgeflow.service.sessions.frames import ActionEvent, End, Event, NoticeEvent, ReceiptEvent, StatusEvent
from edgeflow.service.sessions.observers import Metrics
from edgeflow.service.sessions.plane import ControlPlane
from edgeflow.service.sessions.rates import RollingCount
from edgeflow.service.sessions.runner import SessionRunner
from edgeflow_client.connection.wire import COMMANDS, DISPOSITIONS, EXECUTION_NUMBERS, MODES, RECEIPTS, schema_message
from edgeflow_client.errors import (
    Aborted,
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    RequestError,
)
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import ActionSchema

MOMENT_S = 0.1  # for a write to end once the loop turns again
Context: TypeAlias = Any  # grpc.aio.ServicerContext; the library ships no types


class StreamCall:
    """A running call. caller: identifies the client when the session is opened."""

    def __init__(self, plane: ControlPlane, metrics: Metrics, context: Context, caller: Callable[[], Caller]) -> None:
        self._plane = plane
        self._metrics = metrics
        self._context = context
        self._caller = caller
        self._timing = plane.config.timing
        self._runner: SessionRunner | None = None
        self._alarm: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Run until the session ends; a RequestError becomes the call's status."""
        request = await self._first_open()
        if request is None:
            return
        runner = self._runner = await self._plane.open(request, self._caller())
        try:
            await self._send(self._opened(runner))
            await self._serve(runner)
        finally:
            self._plane.close(runner)
        end = runner.session.ended
        if end is not None and end.code != "OK":
            raise error_of_code(end.code, end.text, end.reason.label)

    async def _first_open(self) -> OpenRequest | None:
        """Wait for Open; messages before it are rejected in band. None if the robot left."""
        config = self._plane.config
        rejections = RollingCount(config.limits.rejected_frames)
        while True:
            received = await self._read_before_open()
            if received is grpc.aio.EOF:
                return None
            if isinstance(received, ParsedMessage) and received.message.WhichOneof("kind") == "open":
                ignored = ignored_fields(received.message, received.source)
                request = check_open(received.message.open, config.alias, config.limits, ignored)
                metadata = [tuple(each) for each in self._context.invocation_metadata() or ()]
                trace = trace_context(metadata) if config.trace.on else ()
                return replace(request, receipts=RECEIPTS in metadata, trace=trace)
            if rejections.exceeded(time.monotonic_ns()):
                raise Aborted("too many messages before Open", reason=Reason.NOT_OPEN)
            await self._send(server_message(_rejected_before_open(received)))

    async def _read_before_open(self) -> Any:
        timeout_s = self._timing.silent_end_ms / 1000
        try:
            return await asyncio.wait_for(self._context.read(), timeout_s)
        except asyncio.TimeoutError:
            raise DeadlineExceeded(f"no Open within {timeout_s:g} s", reason=Reason.NOT_OPEN) from None

    def _opened(self, runner: SessionRunner) -> pb.ServerMessage:
        session = runner.session
        return opened_message(
            session.number,
            session.robot_schema,
            runner.plan,
            model=self._plane.config.alias,
            answers=session.answers,
            request=session.request,
        )

    async def _serve(self, runner: SessionRunner) -> None:
        reader = asyncio.create_task(self._read(runner))
        writer = asyncio.create_task(self._write(runner))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and not writer.done():
                reader.result()
                await asyncio.wait({writer})
            writer.result()
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _read(self, runner: SessionRunner) -> None:
        while (received := await self._context.read()) is not grpc.aio.EOF:
            receive(received, runner, self._plane.config.limits)
        runner.session.end_input()
        runner.pump()

    async def _write(self, runner: SessionRunner) -> None:
        while events := await runner.next_events():
            for event in events:
                started = time.perf_counter()
                message = server_message(event)
                encoded = time.perf_counter()
                await self._send(message)
                self._metrics.encode_seconds.observe(encoded - started)

    async def _send(self, message: pb.ServerMessage) -> None:
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(self._timing.slow_reader_ms / 1000, self._on_silence)
        try:
            await self._context.write(message)
        finally:
            self._alarm.cancel()

    def _on_silence(self) -> None:
        """Give the robot one more moment: this process itself may have been stalled."""
        self._alarm = asyncio.get_running_loop().call_later(MOMENT_S, self._on_stall)

    def _on_stall(self) -> None:
        """End the session of a robot that does not read; the status follows the unread messages."""
        if self._runner is not None:
            seconds = self._timing.slow_reader_ms / 1000
            text = f"the robot did not read its answers for {seconds:g} s"
            self._runner.session.end(End("RESOURCE_EXHAUSTED", Reason.SLOW_READER, text))
            self._plane.close(self._runner)


def _rejected_before_open(received: ParsedMessage[pb.ClientMessage] | Unparsable) -> Event:
    if isinstance(received, Unparsable):
        return StatusEvent.rejected(0, unparsable())
    early = FailedPrecondition("send Open first", reason=Reason.NOT_OPEN)
    if received.message.WhichOneof("kind") == "frame":
        return StatusEvent.rejected(received.message.frame.seq, early)
    return NoticeEvent("rejected", 0, early.code, early.text)


def unparsable() -> InvalidArgument:
    """The error for bytes that are not a message."""
    return InvalidArgument("is not a valid protobuf message", field="message", reason=Reason.MESSAGE_UNPARSABLE)


def receive(
    received: ParsedMessage[pb.ClientMessage] | Unparsable, runner: SessionRunner, limits: LimitsConfig
) -> None:
    """Handle one message; the stream continues after any contents."""
    if runner.session.ended is not None:
        return
    if isinstance(received, Unparsable):
        runner.reject(0, unparsable())
        return
    match received.message.WhichOneof("kind"):
        case "frame":
            frame, request = received.message.frame, runner.session.request
            runner.receive_frame(frame.seq, frame.stamp_ns, lambda: _contents(received, request, runner, limits))
        case "reset":
            _reset(received, runner, limits)
        case "close":
            runner.end(End("OK", Reason.CLIENT_CLOSED))
        case "open":
            runner.reject_message(
                AlreadyExists("this stream already has a session", field="open", reason=Reason.SESSION_OPEN)
            )
        case _:
            _without_content(received, runner)


def _contents(
    received: ParsedMessage[pb.ClientMessage], request: OpenRequest, runner: SessionRunner, limits: LimitsConfig
) -> CheckedFrame:
    runner.ignore(ignored_fields(received.message, received.source))
    return check_frame(received, request, limits)


def _without_content(received: ParsedMessage[pb.ClientMessage], runner: SessionRunner) -> None:
    """Handle a message of a kind that this version does not know, or of none."""
    try:
        ignored = ignored_fields(received.message, received.source)
    except RequestError as error:
        runner.reject(0, error)
        return
    if ignored:
        runner.ignore(ignored)
        runner.pump()
    else:
        text = "is empty: send a frame, reset or close"
        runner.reject(0, InvalidArgument(text, field="message", reason=Reason.MESSAGE_EMPTY))


def _reset(received: ParsedMessage[pb.ClientMessage], runner: SessionRunner, limits: LimitsConfig) -> None:
    message = received.message.reset
    try:
        runner.ignore(ignored_fields(received.message, received.source))
        text = check_text(message.instruction, "reset.instruction", limits) if message.instruction else ""
    except RequestError as error:
        runner.reject_message(error)
    else:
        runner.reset(text)


_COMMANDS = {command: number for number, command in COMMANDS.items()}
_MODES = {mode: number for number, mode in MODES.items()}
_DISPOSITIONS = {disposition: number for number, disposition in DISPOSITIONS.items()}


def server_message(event: Event) -> pb.ServerMessage:
    """The message of an event."""
    match event:
        case ActionEvent():
            return pb.ServerMessage(action=action_message(event))
        case StatusEvent():
            status = pb.FrameStatus(
                seq=event.seq,
                last_seq=event.last_seq,
                disposition=_DISPOSITIONS[event.disposition],
                code=event.code,
                reason=event.reason,
                text=event.text,
            )
            return pb.ServerMessage(frame_status=status)
        case NoticeEvent():
            notice = pb.Notice(
                kind=event.kind, epoch=event.epoch, code=event.code, text=event.text, deadline_ms=event.deadline_ms
            )
            return pb.ServerMessage(notice=notice)
        case ReceiptEvent():
            return pb.ServerMessage(receipt=pb.Receipt(seq=event.seq))


def opened_message(
    session: int,
    schema: ActionSchema,
    plan: SessionPlan,
    *,
    model: str,
    answers: SessionAnswers,
    request: OpenRequest,
) -> pb.ServerMessage:
    """The answer to Open; a session starts in epoch 1."""
    speculation, choice = plan.pace.speculation, answers.execution.now
    return pb.ServerMessage(
        opened=pb.Opened(
            session=session,
            epoch=1,
            schema=schema_message(schema),
            action_tokens=plan.stages,
            mode=_MODES[served_mode(plan.mode, plan.pace, plan.stages)],
            model=model,
            valid_for_ms=answers.valid_for_ms,
            depth=plan.pace.depth,
            predicted_fps=plan.forecast.fps,
            predicted_age_ms=(plan.forecast.age_ns + plan.decode_ns) / 1e6,
            tolerance_bins=speculation.tolerance_bins if speculation else 0,
            max_passes=speculation.most_passes(plan.stages) if speculation else 0,
            execution=EXECUTION_NUMBERS[choice.execution if choice else None],
            unheard_m=answers.unheard_m,
            receipts=request.receipts,
            cameras=[
                pb.Camera(name=each.name, width=each.width, height=each.height)
                for each in request.cameras
                if each.resize
            ],
            ignored=request.ignored,
        )
    )


def action_message(event: ActionEvent) -> pb.Action:
    """The message of an action."""
    timings, report = event.timings, event.report
    return pb.Action(
        epoch=event.epoch,
        seq=event.seq,
        stamp_ns=event.stamp_ns,
        command=_COMMANDS[event.command],
        reason=event.reason,
        valid_for_ms=event.valid_for_ms,
        max_age_ms=event.max_age_ms,
        values=event.values,
        horizon=event.chunk.horizon if event.chunk else 0,
        step_ms=event.chunk.step_ms if event.chunk else 0.0,
        token_ids=event.token_ids,
        settled=event.settled,
        tolerance_bins=event.tolerance_bins,
        max_passes=event.max_passes,
        timings=pb.Timings(
            decode_ns=timings.decode_ns,
            queue_ns=timings.queue_ns,
            inference_ns=timings.inference_ns,
            passes=timings.passes,
            server_ns=event.server_ns,
        ),
        continues=report.continues,
        conditioned_steps=report.conditioned_steps,
        limited=[
            pb.Limited(dimension=each.dimension, limit=each.limit.value, beyond=each.beyond, changed=each.changed)
            for each in report.limited
        ],
        candidates=[
            pb.Candidate(score=each.score, distance=each.distance, roughness=each.roughness, beyond=each.beyond)
            for each in report.candidates
        ],
        chosen=report.chosen,
        **_executed(event.execution),
    )


def _executed(how: AnswerExecution | None) -> dict[str, Any]:
    if how is None:
        return {}
    return {
        "execution": EXECUTION_NUMBERS[how.execution],
        "rate": how.rate_percent / FULL_RATE,
        "rows": how.rows,
        "from_arrival": how.from_arrival,
    }
