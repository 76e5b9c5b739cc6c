"""Objects made in advance, so that their use cannot fail for lack of descriptors, memory or threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Generic, Protocol, TypeVar

from edgeflow.service.observe.log import EventLog

RETRY_S = 1.0


class Closable(Protocol):
    """Something that holds descriptors."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class Spare(Generic[T]):
    """Holds one `T`, and makes another soon after it was taken. Use it on the loop. name: for the log."""

    def __init__(self, name: str, make: Callable[[], T], log: EventLog) -> None:
        self._name = name
        self._make = make
        self._log = log
        self._item: T | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._lacking = False

    def take(self) -> T:
        """The spare object, or a new one; OSError if there is no spare and none can be made. Call `fill` afterwards."""
        item, self._item = self._item, None
        return item if item is not None else self._make()

    def put_back(self, item: T) -> None:
        """Return one that was not used."""
        if self._item is None:
            self._item = item
        else:
            item.close()

    def fill(self) -> None:
        """Make one if none is held. If that fails it is logged once and tried again every RETRY_S."""
        self._cancel()
        if self._item is not None:
            return
        try:
            self._item = self._make()
        except OSError as error:
            if not self._lacking:
                self._log.event("warning", text=f"nothing is held for the next {self._name}: {error.strerror}")
            self._lacking = True
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self.fill)
        else:
            self._lacking = False

    def close(self) -> None:
        """Close the spare object; idempotent."""
        self._cancel()
        item, self._item = self._item, None
        if item is not None:
            item.close()

    def _cancel(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None


def start_threads(pool: Executor, count: int) -> None:
    """Start all threads of a pool now, before memory or threads may be short."""
    begun = threading.Event()
    try:
        with contextlib.suppress(RuntimeError):
            for _ in range(count):
                pool.submit(begun.wait)
    finally:
        begun.set()
