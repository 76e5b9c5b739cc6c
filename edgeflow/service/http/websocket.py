"""Websocket connections with limits that uvicorn lacks: time and memory for messages that arrive, and an end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from starlette.websockets import WebSocket
from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame

from edgeflow.service.http.protocol import GOODBYE_S, SharedLimits, last_answer
from edgeflow.service.sessions.rates import RollingCount

MOST_PARTIAL_BYTES = 64 << 20  # of incomplete messages of all connections; a quarter of it per address
MOST_QUEUED = 16  # messages that wait for a reply
MOST_PARTS = 1024  # per message
MOST_PINGS = 1000  # per client in 10 s
Data: TypeAlias = bytes | str
RECEIVED_NS = "edgeflow.received_ns"  # key of a message
CONNECTION = "edgeflow.websocket"  # key in the state of a scope
GOING_AWAY, POLICY_VIOLATION, TOO_BIG, TRY_LATER = 1001, 1008, 1009, 1013  # codes of closing


class _Stamping(asyncio.Queue[Any]):
    """Messages for the application, each with the time of its arrival."""

    def put_nowait(self, item: Any) -> None:
        super().put_nowait({**item, RECEIVED_NS: time.monotonic_ns()})


class BoundedWebsocket(WebSocketsSansIOProtocol):
    """A connection under the limits of its server. address: of the client, under which it counts until it ends."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        bounds: SharedLimits,
        address: str | None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self})
        self.queue = _Stamping()
        self.conversation: asyncio.Task[Any] | None = None  # ends with the connection
        self._bounds = bounds
        self._address = address
        self._partial_bytes = 0
        self._pings = RollingCount(MOST_PINGS)
        self._late: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None

    @property
    def answering(self) -> bool:
        """True until everything sent has left this process."""
        return bool(self.transport.get_write_buffer_size())

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late, self._end):
            if timer is not None:
                timer.cancel()
        self._count(0)
        if self._address is not None:
            self._bounds.left(self._address)
        super().connection_lost(exc)
        if self.conversation is not None:
            self.conversation.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.close_sent or self.transport.is_closing():
            return
        if not self.handshake_initiated:  # the whole head is here, and the library rejects it without an answer
            self._bounds.metrics.limit_rejections.labels("http_headers").inc()
            self.transport.write(last_answer(431, "a header is too long, or there are too many"))
            self.transport.close()
            self._end_soon()
            return
        self._count(len(self.conn.reader.buffer) + sum(map(len, self.frames)))
        if not self._partial_bytes and not self.frames:
            self._whole()
        elif len(self.frames) > MOST_PARTS:
            self._reject("websocket_parts", TOO_BIG, f"a message of more than {MOST_PARTS} parts")
        elif max(self._bounds.partial_bytes, 4 * self._bounds.partial_of[self._address or ""]) > MOST_PARTIAL_BYTES:
            self._reject("websocket_partial_bytes", TRY_LATER, "other large messages are being read")
        elif self._late is None:
            self._late = self.loop.call_later(self._bounds.body_s, self._cut)

    def handle_parser_exception(self) -> None:
        """End the connection with a reason that its client can read: closing it with bytes unread would reset it."""
        close = self.conn.close_sent
        if self.close_sent or close is None:
            return
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.close_timer = self.loop.call_later(GOODBYE_S, self.transport.abort)
        self.frames = []
        self._count(0)
        self._whole()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()  # discard the rest

    async def send(self, message: ASGISendEvent) -> None:
        if self.close_sent and message["type"] == "websocket.send":
            raise ClientDisconnected  # the connection ended, which the conversation does not know yet
        await super().send(message)

    def handle_ping(self) -> None:
        """Answer a ping. Each costs time, and memory until its answer is read."""
        if not self.close_sent and not self.transport.is_closing():
            super().handle_ping()
            self._count_ping()

    def handle_pong(self, event: Frame) -> None:
        super().handle_pong(event)
        self._count_ping()

    def send_receive_event_to_app(self) -> None:
        super().send_receive_event_to_app()
        if self.queue.qsize() > MOST_QUEUED:
            self._reject("websocket_messages", POLICY_VIOLATION, f"more than {MOST_QUEUED} messages wait for replies")

    def _count_ping(self) -> None:
        if self._pings.exceeded(time.monotonic_ns()):
            self._reject("websocket_pings", POLICY_VIOLATION, f"more than {MOST_PINGS} pings and pongs in 10 s")

    def keepalive_timeout(self) -> None:
        """Close a connection whose client does not answer pings, even if it reads."""
        super().keepalive_timeout()
        self._end_soon()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """A connection ends with its conversation."""
        super().on_task_complete(task)
        self._end_soon()

    def _count(self, size: int) -> None:
        self._bounds.partial_bytes += size - self._partial_bytes
        self._bounds.partial_of[self._address or ""] += size - self._partial_bytes
        self._partial_bytes = size

    def _whole(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _cut(self) -> None:
        self._late = None
        self._reject("websocket_message_ms", TRY_LATER, "the rest of a message did not arrive in time")

    def _reject(self, limit: str, code: int, text: str) -> None:
        if self.close_sent or self.transport.is_closing():
            return
        self._bounds.metrics.limit_rejections.labels(limit).inc()
        self.conn.fail(code, text)
        if self.conn.close_sent is not None:
            self.handle_parser_exception()
        self._end_soon()

    def _end_soon(self) -> None:
        if self._end is None:
            self._end = self.loop.call_later(GOODBYE_S, self.transport.abort)


@contextlib.contextmanager
def until_gone(websocket: WebSocket) -> Iterator[None]:
    """Cancel the rest of the context once the client is gone, and continue after it."""
    connection: BoundedWebsocket = websocket.scope["state"][CONNECTION]
    connection.conversation = asyncio.current_task()
    try:
        yield
    except asyncio.CancelledError:
        if not connection.disconnected:
            raise
    finally:
        connection.conversation = None


async def converse(
    websocket: WebSocket,
    reply: Callable[[Data | None, int], Awaitable[Data]],
    *,
    busy: Callable[[], AbstractContextManager[None]],
    close_reason: Callable[[], str],
    slow_s: float,
    slow: Callable[[], None],
) -> None:
    """Answer a connection's messages in order until its client leaves.

    reply: takes a message and its arrival time in nanoseconds. busy: a context from each message until its reply was
    sent. close_reason: the reason to close the connection after a reply; "" = keep it open. slow: called if a client
    leaves a reply unread for slow_s.
    """
    loop = asyncio.get_running_loop()
    while (message := await websocket.receive())["type"] != "websocket.disconnect":
        data = message.get("bytes")
        with busy():
            answer = await reply(message.get("text") if data is None else data, message[RECEIVED_NS])
            timer = loop.call_later(slow_s, slow)
            try:
                await (websocket.send_text(answer) if isinstance(answer, str) else websocket.send_bytes(answer))
            finally:
                timer.cancel()
        if text := close_reason():
            await websocket.close(POLICY_VIOLATION, text)
            return
