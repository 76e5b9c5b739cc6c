"""One robot of a load test: a stream that is reopened when lost, a pace, a state that changes slowly, and a ledger."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import cycle
from random import Random
from typing import Any

import grpc

from edgeflow_client.clock import Clock
from edgeflow_client.connection.link import STREAM, Backoff
from edgeflow_client.connection.wire import (
    COMMANDS,
    DISPOSITIONS,
    EXECUTIONS,
    Opened,
    error_of,
    open_message,
    opened_of,
    timings_of,
)
from edgeflow_client.errors import DeadlineExceeded, EdgeflowError, FailedPrecondition, Unavailable
from edgeflow_client.loadtest.robots.ledger import Ledger
from edgeflow_client.loadtest.robots.plan import ClosedLoopPlan, LoadPlan, Pattern, instants
from edgeflow_client.loadtest.robots.playing import ChunkPlayer, Seamed
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import Command, Disposition

OPEN_ANSWER_S = 10.0
# A robot that was served before may also find its old session not yet ended.
PASSING = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "INTERNAL", "RESOURCE_EXHAUSTED", "ALREADY_EXISTS"}
SHORTEST_S, LONGEST_S = 4.0, 10.0  # period of a number


class Posture:
    """The state that a robot reports: sines between -1 and 1, each with its own period and phase."""

    def __init__(self, numbers: int, random: Random) -> None:
        self._sines = [(random.uniform(SHORTEST_S, LONGEST_S), random.random()) for _ in range(numbers)]

    def at(self, now_ns: int) -> list[float]:
        """The numbers at a moment."""
        return [math.sin(2 * math.pi * (now_ns / 1e9 / period_s + phase)) for period_s, phase in self._sines]


class LoadRobot:
    """`run` keeps a stream, `pace` sends frames over it.

    frames: the encoded images of each frame, sent in turn. connection: a grpc.aio.Channel. admitted: the latest Opened
    from the service, None before the first. rejected: why the robot stopped
    opening streams. opened: set at the first Opened or at the rejection.
    """

    def __init__(
        self,
        number: int,
        plan: LoadPlan,
        frames: Sequence[tuple[bytes, ...]],
        *,
        connection: Any,
        clock: Clock,
        random: Random,
    ) -> None:
        self.ledger = Ledger(number)
        self.admitted: Opened | None = None
        self.refused: EdgeflowError | None = None
        self.opened = asyncio.Event()
        self._settings = plan.session
        self._instruction = plan.instructions[number % len(plan.instructions)]
        first = number % len(frames)
        self._frames = cycle([*frames[first:], *frames[:first]])
        self._posture = Posture(sum(each.size for each in plan.session.state), random)
        self._connection = connection
        self._clock = clock
        self._backoff = Backoff(random)
        self._playing = ChunkPlayer()
        self._call: Any = None  # while a stream is open
        self._first = 0  # frames offered before the present stream
        self._changed = asyncio.Event()
        self._halted = self._stopping = False
        self._counts_from_ns = 0
        self._left: int | None = None  # frames still to offer that count, None = no limit

    async def run(self) -> None:
        """Open one stream after another until `stop`, or a rejection that is final or precedes the first Opened."""
        while True:
            error = await self._one_stream()
            self.ledger.lose()
            final = self.admitted is None or error.code not in PASSING
            if final and not self._stopping:
                self.refused = error
            if not self._stopping:
                kind = "refused" if final else "lost"
                self.ledger.happen(self._clock.now_ns(), kind, error.code, error.text)
            self.opened.set()
            self._changed.set()
            if final or self._stopping:
                return
            await asyncio.sleep(self._backoff.next_delay_s())

    async def pace(self, pattern: Pattern, begin_ns: int) -> None:
        """Offer frames until `halt`, the limit, the schedule's end, or a rejection."""
        self._halted = False
        if isinstance(pattern, ClosedLoopPlan):
            await self._pace_closed(pattern.window)
            return
        for instant_ns in instants(pattern):
            await self._sleep_until(begin_ns + instant_ns)
            if self._done:
                return
            await self._offer(begin_ns + instant_ns)

    def limit(self, begin_ns: int, count: int) -> None:
        """Offer at most `count` frames that are due from begin_ns on."""
        self._counts_from_ns, self._left = begin_ns, count

    def halt(self) -> None:
        """Stop offering frames; a write that has begun is completed."""
        self._halted = True
        self._changed.set()

    async def drained(self) -> None:
        """Wait until no frame is in flight."""
        while self.ledger.in_flight:
            await self._change()

    async def stop(self) -> None:
        """Send Close; the service then ends the stream."""
        self._stopping = True
        call = self._call
        if call is not None:
            try:
                await call.write(pb.ClientMessage(close=pb.Close()))
                await call.done_writing()
            except (grpc.RpcError, asyncio.InvalidStateError):
                return

    @property
    def _done(self) -> bool:
        return self._halted or self._left == 0 or self.refused is not None

    async def _pace_closed(self, window: int) -> None:
        while not self._done:
            now_ns = self._clock.now_ns()
            if self._call is None or self.ledger.in_flight >= window:
                await self._change()
            elif now_ns < self._playing.rests_from_ns:
                await self._sleep_until(self._playing.rests_from_ns)
            else:
                await self._offer(now_ns)

    async def _sleep_until(self, instant_ns: int) -> None:
        loop = asyncio.get_running_loop()
        while not self._done and (left_ns := instant_ns - self._clock.now_ns()) > 0:
            alarm = loop.call_later(left_ns / 1e9, self._changed.set)
            await self._change()
            alarm.cancel()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _offer(self, scheduled_ns: int) -> None:
        if self._left is not None and scheduled_ns >= self._counts_from_ns:
            self._left -= 1
        call = self._call
        if call is None:
            self.ledger.offer_in_vain(scheduled_ns)
            return
        record = self.ledger.offer(scheduled_ns, self._clock.now_ns())
        frame = pb.Frame(
            seq=record.number - self._first,
            stamp_ns=scheduled_ns,
            images=[pb.Image(data=data) for data in next(self._frames)],
            proprio=self._posture.at(scheduled_ns),
        )
        self._playing.report(frame)
        try:
            await call.write(pb.ClientMessage(frame=frame))
        except (grpc.RpcError, asyncio.InvalidStateError):
            self._call = None  # the reader learns why the stream ended

    async def _one_stream(self) -> EdgeflowError:
        """Run one stream from Open to its end; return why it ended."""
        stream = self._connection.stream_stream(
            STREAM,
            request_serializer=pb.ClientMessage.SerializeToString,
            response_deserializer=pb.ServerMessage.FromString,
        )
        call = stream()
        try:
            await asyncio.wait_for(self._open_stream(call), OPEN_ANSWER_S)
            while (message := await call.read()) is not grpc.aio.EOF:
                hear(self.ledger, self._playing, message, self._first, self._clock.now_ns())
                self._changed.set()
            code, text = await call.code(), await call.details()
            return Unavailable(f"the service ended the stream: {code.name} {text}".rstrip(), reason=Reason.STREAM_ENDED)
        except grpc.RpcError as error:
            return error_of(error)
        except asyncio.TimeoutError:
            return DeadlineExceeded(f"Open was not answered within {OPEN_ANSWER_S:g} s", reason=Reason.NOT_OPENED)
        except EdgeflowError as error:
            return error
        finally:
            self._call = None
            call.cancel()

    async def _open_stream(self, call: Any) -> None:
        await call.write(pb.ClientMessage(open=open_message(self._settings, self._instruction)))
        message = await call.read()
        if message is grpc.aio.EOF:
            raise FailedPrecondition("the service ended the stream without an answer to Open")
        if message.WhichOneof("kind") != "opened":
            raise FailedPrecondition(f"the service answered Open with {message.WhichOneof('kind')}")
        self.admitted = opened_of(message.opened)
        self._playing = ChunkPlayer(self.admitted.schema.motion_ns)
        self._backoff.succeeded()
        self._first = len(self.ledger.frames)
        self.ledger.happen(self._clock.now_ns(), "opened", "", f"session {self.admitted.session}")
        self._call = call
        self.opened.set()
        self._changed.set()


def hear(ledger: Ledger, playing: ChunkPlayer, message: pb.ServerMessage, first: int, now_ns: int) -> None:
    """Record one message. playing: of its stream. first: number of frames in the ledger that were offered before it."""
    match message.WhichOneof("kind"):
        case "action":
            _hear_action(ledger, message.action, first, now_ns, playing.heard(message.action, now_ns))
        case "frame_status":
            status = message.frame_status
            disposition = DISPOSITIONS.get(status.disposition, Disposition.DROPPED)
            reason = status.reason or status.code
            last = max(status.seq, status.last_seq)
            ledger.dispose(status.seq + first, last + first, disposition, reason, now_ns)
        case "notice":
            ledger.happen(now_ns, "notice", message.notice.kind, message.notice.text)
        case kind:
            ledger.happen(now_ns, "contradicted", Reason.UNEXPECTED_MESSAGE, str(kind))


def _hear_action(ledger: Ledger, action: pb.Action, first: int, now_ns: int, seam: Seamed) -> None:
    command = COMMANDS.get(action.command, Command.HOLD)
    if command is Command.ACT:
        ledger.act(
            action.seq + first,
            stamp_ns=action.stamp_ns,
            received_ns=now_ns,
            valid_for_ms=action.valid_for_ms,
            server_ns=action.timings.server_ns,
            timings=timings_of(action.timings),
            max_age_ms=action.max_age_ms,
            horizon=action.horizon or 1,
            step_ms=action.step_ms,
            unsettled=max(len(action.token_ids) - action.settled, 0) if action.max_passes else 0,
            continued=seam.continued,
            late=seam.late,
            executed=seam.executed,
            execution=EXECUTIONS[action.execution].value if action.execution in EXECUTIONS else "",
        )
    else:
        ledger.happen(now_ns, command.value, action.reason)
