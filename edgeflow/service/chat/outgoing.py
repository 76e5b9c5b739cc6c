"""The events of a streamed answer, between the model and a reader for whom the model does not wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from typing import Any

MAX_UNREAD_BYTES = 1 << 20
CHUNK_BYTES = 16 << 10


class Outgoing:
    """A bounded queue of events, filled by a separate task and read by the response."""

    def __init__(self, most: int = MAX_UNREAD_BYTES) -> None:
        self._most = most
        self._events: deque[bytes] = deque()
        self._size = 0
        self._room = asyncio.Event()
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self, produce: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine that puts the events; its end is that of the stream."""
        self._task = asyncio.create_task(produce, name="chat-answer")
        self._task.add_done_callback(lambda _: self._some.set())

    @property
    def full(self) -> bool:
        """True if the reader has to take something before more may be put."""
        return self._size >= self._most

    async def room(self) -> None:
        """Wait until there is room."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    def add(self, event: str) -> None:
        """Add an event; wait for room before a large one."""
        data = event.encode()
        self._events.append(data)
        self._size += len(data)
        self._some.set()

    async def first(self) -> None:
        """Wait for the first event; raises what the task raised before it."""
        await self._some.wait()
        if not self._events and self._task is not None:
            await self._task

    async def chunks(self) -> AsyncIterator[bytes]:
        """The events, joined where several wait; EdgeflowError as raised by the task, after the last event."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._events:
                yield self._take()
            if self._task is not None and self._task.done() and not self._events:
                self._task.result()
                return

    async def close(self) -> None:
        """End the task, and wait until it has passed on its turn."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _take(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._events and (not parts or size + len(self._events[0]) <= CHUNK_BYTES):
            parts.append(self._events.popleft())
            size += len(parts[-1])
        self._size -= size
        if not self.full:
            self._room.set()
        return b"".join(parts)
