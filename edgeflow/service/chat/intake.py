"""Bodies of chat requests: one large one in memory, and one parsed, at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from edgeflow.config import ServiceConfig
from edgeflow.errors import RETRY_AFTER_MS, RequestError, ResourceExhausted
from edgeflow.reasons import Reason
from edgeflow.service.chat.body import Kind, parse
from edgeflow.service.http.edge import BodyTooLarge
from edgeflow.service.observe.chat_metrics import ChatMetrics

SMALL_BYTES = 64 << 10  # from here on a body needs a turn; the server may have read a few times as much ahead


class BodyLate(RequestError):
    """The request body arrived too slowly."""

    code = "DEADLINE_EXCEEDED"
    http_status = 408


class Intake:
    """Reads and parses bodies. A large one is not read before its turn, which is waited for like the model's."""

    def __init__(self, config: ServiceConfig, metrics: ChatMetrics) -> None:
        self._most = config.limits.http_body_bytes
        self._body_s = config.timing.http_body_ms / 1000
        self._turn_s = config.chat.queue_ms / 1000
        self._metrics = metrics
        self._large = asyncio.Lock()
        self._parsing = asyncio.Lock()

    @property
    def busy(self) -> bool:
        """True while a large body is being read, or made into a prompt."""
        return self._large.locked()

    @contextlib.asynccontextmanager
    async def body(self, kind: type[Kind], request: Request) -> AsyncIterator[Kind]:
        """A request's body, checked. The turn ends with the context: build the prompt inside."""
        async with contextlib.AsyncExitStack() as turns:
            data = await self._read(request, turns)
            await turns.enter_async_context(self._parsing)
            yield await asyncio.to_thread(parse, kind, request.headers.get("content-type", ""), data)

    async def _read(self, request: Request, turns: contextlib.AsyncExitStack) -> bytes:
        """Read a body; from SMALL_BYTES on, in turn."""
        data, more = bytearray(), True
        while more and len(data) <= SMALL_BYTES:
            more = await self._next(request, data, self._body_s)
        if more:
            await self._take_turn(turns)
            loop = asyncio.get_running_loop()
            until_s = loop.time() + self._body_s
            while more:
                more = await self._next(request, data, until_s - loop.time())
        return bytes(data)

    async def _take_turn(self, turns: contextlib.AsyncExitStack) -> None:
        try:
            await asyncio.wait_for(self._large.acquire(), self._turn_s)
        except asyncio.TimeoutError:
            self._metrics.refused.labels(Reason.QUEUE_TIMEOUT).inc()
            raise ResourceExhausted(
                f"the body waited longer than {self._turn_s * 1000:g} ms for other large ones",
                field="body",
                reason=Reason.QUEUE_TIMEOUT,
                retry_after_ms=RETRY_AFTER_MS,
            ) from None
        turns.callback(self._large.release)

    async def _next(self, request: Request, data: bytearray, left_s: float) -> bool:
        """Read the next part; False after the last one."""
        try:
            message = await asyncio.wait_for(request.receive(), max(left_s, 0))
        except asyncio.TimeoutError:
            raise BodyLate("the request's body did not arrive in time", field="body") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        data += message.get("body", b"")
        if len(data) > self._most:
            self._metrics.limit_rejections.labels("http_body_bytes").inc()
            raise BodyTooLarge(f"exceeds the limit of {self._most} bytes", field="body", reason=Reason.BODY_TOO_LARGE)
        return bool(message.get("more_body", False))
