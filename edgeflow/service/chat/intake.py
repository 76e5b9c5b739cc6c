"""Bodies of chat requests: at most one large body is in memory, and one is parsed, at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request

from edgeflow.config.service import ServiceConfig
from edgeflow.service.chat.body import Kind, parse
from edgeflow.service.http.answers import BodyLate, BodyTooLarge, next_part
from edgeflow.service.observe.process_metrics import ChatMetrics
from edgeflow_client.errors import RETRY_AFTER_MS, ResourceExhausted
from edgeflow_client.reasons import Reason

SMALL_BYTES = 64 << 10  # a larger body needs a turn; the server may have read a few times as much ahead
TURN_S = 2.0  # for the rest of a large body to arrive while others wait
CHECK_S = 0.1


class Intake:
    """Reads and parses bodies. A large body is not read before its turn, which has the same limits as the model's."""

    def __init__(self, config: ServiceConfig, metrics: ChatMetrics) -> None:
        self._most = config.limits.http_body_bytes
        self._body_s = config.timing.http_body_ms / 1000
        self._turn_s = config.chat.queue_ms / 1000
        self._metrics = metrics
        self._large = asyncio.Lock()
        self._waiting = 0  # requests that wait for their turn
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
            more = await self._next(request, data)
        if more:
            await self._take_turn(turns)
            reading = asyncio.create_task(self._rest(request, data))
            turns.push_async_callback(_end, reading)
            await self._in_time(reading)
        return bytes(data)

    async def _rest(self, request: Request, data: bytearray) -> None:
        while await self._next(request, data):
            pass

    async def _in_time(self, reading: asyncio.Task[None]) -> None:
        """Wait for the rest of a body, at most TURN_S while others wait for their turn."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while not (await asyncio.wait({reading}, timeout=min(CHECK_S, self._body_s)))[0]:
            most_s = min(TURN_S, self._body_s) if self._waiting else self._body_s
            if loop.time() - began_s >= most_s:
                raise _late()
        reading.result()

    async def _take_turn(self, turns: contextlib.AsyncExitStack) -> None:
        self._waiting += 1
        try:
            await asyncio.wait_for(self._large.acquire(), self._turn_s)
        except asyncio.TimeoutError:
            self._metrics.rejected.labels(Reason.QUEUE_TIMEOUT).inc()
            raise ResourceExhausted(
                f"the body waited longer than {self._turn_s * 1000:g} ms for other large ones",
                field="body",
                reason=Reason.QUEUE_TIMEOUT,
                retry_after_ms=RETRY_AFTER_MS,
            ) from None
        finally:
            self._waiting -= 1
        turns.callback(self._large.release)

    async def _next(self, request: Request, data: bytearray) -> bool:
        try:
            more = await asyncio.wait_for(next_part(request, data), self._body_s)
        except asyncio.TimeoutError:
            raise _late() from None
        if len(data) > self._most:
            self._metrics.limit_rejections.labels("http_body_bytes").inc()
            raise BodyTooLarge(f"exceeds the limit of {self._most} bytes", field="body", reason=Reason.BODY_TOO_LARGE)
        return more


async def _end(reading: asyncio.Task[None]) -> None:
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


def _late() -> BodyLate:
    return BodyLate("the request's body did not arrive in time", field="body")
