"""Bodies of observations. Only a few large ones are read at a time, so that together they cannot fill the memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from weakref import WeakValueDictionary

from starlette.requests import Request

from edgeflow.service.http.answers import CALLER, BodyLate, BodyTooLarge, next_part
from edgeflow_client.errors import RETRY_AFTER_MS, ResourceExhausted
from edgeflow_client.reasons import Reason

SMALL_BODY_BYTES = 128 << 10  # bodies up to this size are read at once; the rest of a larger one needs capacity
LARGE_BODIES = 8  # that are read at the same time
LARGE_PER_ADDRESS = 2
LARGE_WAIT_S = 3.0  # for capacity
LARGE_READ_S = 2.0  # for the rest of a body to arrive


class BodyReader:
    """Reads bodies of at most `most` bytes. what: the contents, for messages."""

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._capacity = _BodyCapacity()

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a request. A large one uses capacity until the context ends."""
        async with contextlib.AsyncExitStack() as used:
            yield await self._body(request, used)

    async def _body(self, request: Request, used: contextlib.AsyncExitStack) -> bytes:
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._most:
            raise self._too_large()
        data, more = bytearray(), True
        while more and len(data) <= SMALL_BODY_BYTES:
            more = await self._next(request, data)
        if more:
            peer: str = request.scope[CALLER].peer
            await self._capacity.take(peer, used)
            try:
                await asyncio.wait_for(self._rest(request, data), LARGE_READ_S)
            except asyncio.TimeoutError:
                text = f"the rest of a body must arrive within {LARGE_READ_S:g} s"
                raise BodyLate(text, field="body") from None
        return bytes(data)

    async def _rest(self, request: Request, data: bytearray) -> None:
        while await self._next(request, data):
            pass

    async def _next(self, request: Request, data: bytearray) -> bool:
        more = await next_part(request, data)
        if len(data) > self._most:
            raise self._too_large()
        return more

    def _too_large(self) -> BodyTooLarge:
        text = f"exceeds the limit of {self._most} bytes for {self._what}"
        return BodyTooLarge(text, field="body", reason=Reason.BODY_TOO_LARGE)


class _BodyCapacity:
    """The capacity for large bodies, and a part of it per address."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(LARGE_BODIES)
        self._of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def take(self, address: str, used: contextlib.AsyncExitStack) -> None:
        """Wait for capacity, and release it with the context; ResourceExhausted if none becomes free."""
        own = self._of.setdefault(address, asyncio.Semaphore(LARGE_PER_ADDRESS))
        try:
            for each in (own, self._all):  # the address first: while it waits, it must not hold common capacity
                await asyncio.wait_for(each.acquire(), LARGE_WAIT_S)
                used.callback(each.release)
        except asyncio.TimeoutError:
            text = "other large bodies are being read"
            raise ResourceExhausted(
                text, field="body", reason=Reason.QUEUE_FULL, retry_after_ms=RETRY_AFTER_MS
            ) from None
