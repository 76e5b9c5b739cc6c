"""One robot of a load test: a stream that is reopened when lost, a pace, and a ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import cycle
from random import Random
from typing import Any, Protocol

import grpc

from edgeflow_client.clock import Clock
from edgeflow_client.connection.link import STREAM, Backoff
from edgeflow_client.connection.wire import Opened, SessionSettings, error_of, open_message, opened_of
from edgeflow_client.errors import DeadlineExceeded, EdgeflowError, FailedPrecondition, Unavailable
from edgeflow_client.loadtest.robots.hearing import hear
from edgeflow_client.loadtest.robots.ledger import Ledger
from edgeflow_client.loadtest.robots.pacing import instants
from edgeflow_client.loadtest.robots.plan import Closed, Pattern, Session
from edgeflow_client.loadtest.robots.playing import Playing
from edgeflow_client.loadtest.robots.posture import Posture
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb

OPEN_ANSWER_S = 10.0
# A robot that was served before may also find its old session not yet ended.
PASSING = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "INTERNAL", "RESOURCE_EXHAUSTED", "ALREADY_EXISTS"}


class Connection(Protocol):
    """A grpc.aio.Channel."""

    def stream_stream(self, method: str, **options: Any) -> Any: ...


class LoadRobot:
    """`run` keeps a stream, `pace` sends frames over it.

    frames: the encoded images of each frame, sent in turn. admitted: the latest Opened from the service, None before
    the first. chunk: horizon and step_ms of its answers. refused: why the robot stopped opening streams. opened: set at
    the first Opened or at the refusal.
    """

    def __init__(
        self,
        number: int,
        session: Session,
        frames: Sequence[tuple[bytes, ...]],
        *,
        connection: Connection,
        clock: Clock,
        random: Random,
    ) -> None:
        self.ledger = Ledger(number)
        self.admitted: Opened | None = None
        self.chunk = (1, 0.0)
        self.refused: EdgeflowError | None = None
        self.opened = asyncio.Event()
        self._settings = _settings_of(session)
        self._instruction = session.instructions[number % len(session.instructions)]
        first = number % len(frames)
        self._frames = cycle([*frames[first:], *frames[:first]])
        self._posture = Posture(sum(each.size for each in session.state), random)
        self._connection = connection
        self._clock = clock
        self._backoff = Backoff(random)
        self._playing = Playing()
        self._call: Any = None  # while a stream is open
        self._first = 0  # frames offered before the present stream
        self._changed = asyncio.Event()
        self._halted = self._stopping = False
        self._counts_from_ns = 0
        self._left: int | None = None  # frames still to offer that count, None = no limit

    async def run(self) -> None:
        """Open one stream after another until `stop`, or a refusal that is final or precedes the first Opened."""
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
        """Offer frames until `halt`, the limit, the schedule's end, or a refusal."""
        self._halted = False
        if isinstance(pattern, Closed):
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

    async def settled(self) -> None:
        """Wait until no frame is in flight."""
        while self.ledger.under_way:
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
            if self._call is not None and self.ledger.under_way < window:
                await self._offer(self._clock.now_ns())
            else:
                await self._change()

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
        self.chunk = (message.opened.schema.horizon or 1, message.opened.schema.step_ms)
        self._playing = Playing()
        self._backoff.succeeded()
        self._first = len(self.ledger.frames)
        self.ledger.happen(self._clock.now_ns(), "opened", "", f"session {self.admitted.session}")
        self._call = call
        self.opened.set()
        self._changed.set()


def _settings_of(session: Session) -> SessionSettings:
    return SessionSettings(
        cameras=session.cameras,
        control_period_s=session.control_period_s,
        mode=session.mode,
        max_action_age_s=session.max_action_age_s,
        model=session.model,
        unnorm_key=session.unnorm_key,
        depth=session.depth,
        tolerance_bins=session.tolerance_bins,
        max_passes=session.max_passes,
        state=session.state,
    )
