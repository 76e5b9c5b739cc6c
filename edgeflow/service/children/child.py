"""The common part of all child processes: the socket to control, the log, start and end."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from edgeflow.ipc.packets import DescriptorsLackingError, Packets, close_all, read_sealed
from edgeflow.service.children.messages import (
    CODING,
    MUST_TAKE,
    AccessPolicy,
    ActDone,
    ChildFailed,
    ChildMessage,
    Heartbeat,
    LogEvent,
    Operated,
    RobotActed,
    Serving,
    ToChild,
)
from edgeflow.service.children.start import ChildStart
from edgeflow.service.observe.log import Log, incident_values
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow.service.security.auth import ENTRIES, Authenticator
from edgeflow_client.errors import StartError, WorkerError

BEAT_S = 0.25
PER_TURN = 16  # messages per turn of the loop

Receive = Callable[[Any, list[int]], None]
NO_MEMORY_EXIT = 70
LAG_S = 0.05  # between beats of the loop's own timer
MAX_SEALED_BYTES = 4 << 20


class ControlLink:
    """The connection to control; runs on the loop between `start` and `close`.

    received: called with each message and its descriptors, which it must close. gone: called once when control is gone,
    or when this process cannot accept a required message: control then ends it.
    """

    def __init__(self, sock: socket.socket, received: Receive, gone: Callable[[], None]) -> None:
        self._packets: Packets[ChildMessage] = Packets(sock, CODING)
        self._received = received
        self._gone = gone
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beat: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start listening and sending heartbeats."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._packets.fileno(), self._read)
        self._beats()

    def send(self, message: ChildMessage, descriptors: Sequence[int] = ()) -> bool:
        """Send a message; False if control does not read."""
        return self._packets.send(message, descriptors)

    def event(self, name: str, **values: Any) -> None:
        """Write a line to the event log, which control owns."""
        self.send(LogEvent(name, json.dumps(values, default=str)))

    def close(self) -> None:
        """Stop listening; idempotent."""
        if self._loop is not None:
            self._loop.remove_reader(self._packets.fileno())
            self._loop = None
        if self._beat is not None:
            self._beat.cancel()
        self._packets.close()

    def _beats(self) -> None:
        self.send(Heartbeat())
        if self._loop is not None:
            self._beat = self._loop.call_later(BEAT_S, self._beats)

    def _read(self) -> None:
        try:
            for _ in range(PER_TURN):
                if self._loop is None or (found := self._packets.receive()) is None:
                    return
                self._pass_on(*found)
        except DescriptorsLackingError as lack:
            if isinstance(lack.message, MUST_TAKE):
                self._give_up(lack)
            elif isinstance(lack.message, ActDone | Operated | RobotActed):
                self._pass_on(lack.message, [])  # so that its client gets an error instead of a timeout
        except EOFError:
            self._give_up(None)
        except WorkerError as error:
            self._give_up(error)

    def _pass_on(self, message: ChildMessage, descriptors: list[int]) -> None:
        if not isinstance(message, ToChild):
            close_all(descriptors)
            return
        try:
            self._received(message, descriptors)
        except Exception as error:
            if isinstance(message, MUST_TAKE):
                self._give_up(error)
            else:
                self.event("incident", **incident_values("message of control", error))

    def _give_up(self, error: Exception | None) -> None:
        """Close the socket; control then kills this process."""
        if error is not None:
            self.event("incident", **incident_values("socket to control", error))
        self.close()
        self._gone()


class ChildLog(Log):
    """The log of a child. Control writes the lines; they are lost if control does not read."""

    def __init__(self, link: ControlLink, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lambda: int(now_s()))
        self._link = link

    def incident(self, where: str, error: BaseException) -> str:
        """Log an unexpected exception. After a MemoryError the process ends, and control starts another one."""
        number = super().incident(where, error)
        if isinstance(error, MemoryError):
            os._exit(NO_MEMORY_EXIT)
        return number

    def _write(self, name: str, values: dict[str, Any]) -> None:
        self._link.event(name, **values)


class ServingChild:
    """The base of a child process: it loads, waits for required messages of control, serves, and ends with control.

    wanted: types of messages that it must have received before it serves.
    """

    def __init__(self, start: ChildStart, metrics: ProcessMetrics, wanted: set[type] | None = None) -> None:
        self._link = ControlLink(start.control, self._receive, self.close)
        self._log = ChildLog(self._link)
        self._authenticator = Authenticator(None, metrics, self._log)
        self._process_metrics = metrics
        self._wanted = {AccessPolicy} | (wanted or set())
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
        """Load everything needed for serving; messages of control wait. A StartError fails the start of the service."""

    def _serve(self) -> None:
        """Begin to accept requests."""
        raise NotImplementedError

    def _handle(self, message: ChildMessage, descriptors: list[int]) -> None:
        """Handle a message; descriptors left in the list are closed."""
        raise NotImplementedError

    def _credentials_changed(self) -> None:
        """The tokens in force have changed."""

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
            if isinstance(message, AccessPolicy):
                entries = ENTRIES.validate_json(sealed(descriptors))
                self._authenticator.replace(entries if message.required else None)
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
