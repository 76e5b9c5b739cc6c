"""A child's end of the socket to control: it beats, receives orders, and sends observations and log lines."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any

from edgeflow.ipc.packets import DescriptorsLackingError, Packets, close_all
from edgeflow.service.children.messages import CODING, MUST_TAKE, ActDone, Beat, ChildMessage, LogEvent, ToChild
from edgeflow.service.observe.lines import incident_values
from edgeflow_client.errors import WorkerError

BEAT_S = 0.25
PER_TURN = 16  # messages handled before the loop gets its turn

Receive = Callable[[Any, list[int]], None]


class ControlLink:
    """The connection to control; runs on the loop between `start` and `close`.

    received: called with each message and its descriptors, which it must close. gone: called once when control is gone,
    or when this process cannot take a message that it must take: control ends it then.
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
                self._pass_on(*found)
        except DescriptorsLackingError as lack:
            if isinstance(lack.message, MUST_TAKE):
                self._give_up(lack)
            elif isinstance(lack.message, ActDone):
                self._pass_on(lack.message, [])  # its client must hear something
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
        """Close the socket, at whose end control kills this process."""
        if error is not None:
            self.event("incident", **incident_values("socket to control", error))
        self.close()
        self._gone()
