"""A child's end of the socket to control: it beats, receives orders, and sends observations and log lines."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any

from edgeflow.errors import WorkerError
from edgeflow.ipc.packets import Packets, close_all
from edgeflow.service.children.messages import CODING, Beat, ChildMessage, LogEvent, ToChild

BEAT_S = 0.25
PER_TURN = 16  # messages handled before the loop gets its turn

Receive = Callable[[Any, list[int]], None]


class ControlLink:
    """The connection to control; runs on the loop between `start` and `close`.

    received: called with each message and its descriptors, which it must close. gone: called once when control is gone.
    """

    def __init__(self, sock: socket.socket, received: Receive, gone: Callable[[], None]) -> None:
        self._packets: Packets[ChildMessage] = Packets(sock, CODING)
        self._received = received
        self._gone = gone
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beat: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to listen and to beat."""
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
        self.send(Beat())
        if self._loop is not None:
            self._beat = self._loop.call_later(BEAT_S, self._beats)

    def _read(self) -> None:
        try:
            for _ in range(PER_TURN):
                if self._loop is None or (found := self._packets.receive()) is None:
                    return
                message, descriptors = found
                if isinstance(message, ToChild):
                    self._received(message, descriptors)
                else:
                    close_all(descriptors)
        except (EOFError, WorkerError):
            self.close()
            self._gone()
