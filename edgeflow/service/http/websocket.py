"""Websocket connections with limits that uvicorn lacks: time and memory for messages that arrive, and an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from starlette.websockets import WebSocket
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from edgeflow.service.http.protocol import GOODBYE_S, Bounds, last_answer

MOST_PARTIAL_BYTES = 64 << 20  # of messages of all connections that have not arrived whole
MOST_PARTS = 1024  # of a message
Data: TypeAlias = bytes | str
GOING_AWAY, POLICY_VIOLATION, TOO_BIG, TRY_LATER = 1001, 1008, 1009, 1013  # codes of closing


class BoundedWebsocket(WebSocketsSansIOProtocol):
    """A connection under the limits of its server. address: of its client, which has a place there until it ends."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        bounds: Bounds,
        address: str | None,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._bounds = bounds
        self._address = address
        self._partial_bytes = 0
        self._late: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None

    @property
    def answering(self) -> bool:
        """True until all that was sent has left this process."""
        return bool(self.transport.get_write_buffer_size())

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late, self._end):
            if timer is not None:
                timer.cancel()
        self._count(0)
        if self._address is not None:
            self._bounds.left(self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
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
            self._refuse("websocket_parts", TOO_BIG, f"a message of more than {MOST_PARTS} parts")
        elif self._bounds.partial_bytes > MOST_PARTIAL_BYTES:
            self._refuse("websocket_partial_bytes", TRY_LATER, "other large messages are being read")
        elif self._late is None:
            self._late = self.loop.call_later(self._bounds.body_s, self._cut)

    def keepalive_timeout(self) -> None:
        """Close a connection whose client answers no ping, whether or not it takes what was sent."""
        super().keepalive_timeout()
        self._end_soon()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """A connection ends with its conversation."""
        super().on_task_complete(task)
        self._end_soon()

    def _count(self, size: int) -> None:
        self._bounds.partial_bytes += size - self._partial_bytes
        self._partial_bytes = size

    def _whole(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _cut(self) -> None:
        self._late = None
        self._refuse("websocket_message_ms", TRY_LATER, "the rest of a message did not arrive in time")

    def _refuse(self, limit: str, code: int, text: str) -> None:
        self._bounds.metrics.limit_rejections.labels(limit).inc()
        self.conn.fail(code, text)
        if self.conn.close_sent is not None:
            self.handle_parser_exception()
        self._end_soon()

    def _end_soon(self) -> None:
        if self._end is None:
            self._end = self.loop.call_later(GOODBYE_S, self.transport.abort)


async def converse(
    websocket: WebSocket,
    reply: Callable[[Data | None], Awaitable[Data]],
    *,
    busy: Callable[[], AbstractContextManager[None]],
    over: Callable[[], str],
    slow_s: float,
) -> None:
    """Answer a connection's messages in order until its client leaves; the reply being made ends with it.

    busy: entered from a message until its reply has left. over: why the connection is closed after a reply; "" = it
    goes on. slow_s: how long a client may leave a reply unread; TimeoutError after it.
    """
    coming = asyncio.ensure_future(websocket.receive())
    answering: asyncio.Future[Data] | None = None
    try:
        while True:
            message = await coming
            if message["type"] == "websocket.disconnect":
                return
            coming = asyncio.ensure_future(websocket.receive())
            data = message.get("bytes")
            with busy():
                answering = asyncio.ensure_future(reply(message.get("text") if data is None else data))
                await asyncio.wait({answering, coming}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done() and coming.result()["type"] == "websocket.disconnect":
                    return
                answer = await answering
                send = websocket.send_text(answer) if isinstance(answer, str) else websocket.send_bytes(answer)
                await asyncio.wait_for(send, slow_s)
            if text := over():
                await websocket.close(POLICY_VIOLATION, text)
                return
    finally:
        tasks: list[asyncio.Future[Any]] = [coming, *([answering] if answering is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
