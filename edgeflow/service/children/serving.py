"""A child process from its start to its end, whatever it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from edgeflow.ipc.packets import close_all
from edgeflow.ipc.sealed import read_sealed
from edgeflow.service.children.child import ControlLink
from edgeflow.service.children.log import ChildLog
from edgeflow.service.children.messages import ChildFailed, ChildMessage, Policy, Serving
from edgeflow.service.host.roles import ChildStart
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow.service.security.auth import Guard, read_entries
from edgeflow_client.errors import StartError, WorkerError

LAG_S = 0.05  # between beats of the loop's own timer
MAX_SEALED_BYTES = 4 << 20


class ServingChild:
    """It loads, hears from control what it must know, serves, and ends with control; subclasses say how.

    wanted: messages of control without which it does not serve.
    """

    def __init__(self, start: ChildStart, metrics: ProcessMetrics, wanted: set[type] | None = None) -> None:
        self._link = ControlLink(start.control, self._receive, self.close)
        self._log = ChildLog(self._link)
        self._guard = Guard(None, metrics, self._log)
        self._process_metrics = metrics
        self._wanted = {Policy} | (wanted or set())
        self._known = asyncio.Event()
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Serve until control is gone or `close` is called; returns the exit code."""
        self._process_metrics.open()
        try:
            await self._load()
            self._link.start()
            await self._known.wait()
            if not self._over.is_set():
                self._serve()
                self._spawn(self._measure_lag())
                self._link.send(Serving())
            await self._over.wait()
            return 0
        except StartError as error:
            self._link.send(ChildFailed(type(error).__name__, error.text))
            return 2
        finally:
            await self._release()

    def close(self) -> None:
        """End `run`."""
        self._known.set()
        self._over.set()

    async def _load(self) -> None:
        """Load what serving needs; messages of control wait. StartError ends the start of the service."""

    def _serve(self) -> None:
        """Begin to accept requests."""
        raise NotImplementedError

    def _handle(self, message: ChildMessage, descriptors: list[int]) -> None:
        """Handle a message; descriptors that remain in the list are closed."""
        raise NotImplementedError

    def _credentials_changed(self) -> None:
        """Other tokens are in force."""

    async def _end(self) -> None:
        """Stop serving; idempotent."""
        raise NotImplementedError

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that ends with this process."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _receive(self, message: ChildMessage, descriptors: list[int]) -> None:
        try:
            if isinstance(message, Policy):
                entries = read_entries(sealed(descriptors))
                self._guard.replace(entries if message.asks else None)
                self._credentials_changed()
            else:
                self._handle(message, descriptors)
        finally:
            close_all(descriptors)
        self._wanted.discard(type(message))
        if not self._wanted:
            self._known.set()

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + LAG_S, loop.time() - LAG_S)
            await asyncio.sleep(due - loop.time())
            self._process_metrics.loop_lag.observe(max(0.0, loop.time() - due))

    async def _release(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._end()
        self._link.close()
        self._process_metrics.close()


def sealed(descriptors: list[int], most: int = MAX_SEALED_BYTES) -> bytes:
    """The sealed data of a message that has one descriptor."""
    if len(descriptors) != 1:
        raise WorkerError("a message lacks its descriptor")
    return read_sealed(descriptors[0], most)
