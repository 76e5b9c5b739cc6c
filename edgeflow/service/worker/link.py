"""Control's end of the socket to the worker: asyncio, length-prefixed messages as in ipc/channel.py."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from edgeflow.errors import WorkerError
from edgeflow.ipc.channel import PREFIX, check_lengths, pack
from edgeflow.ipc.coding import decode
from edgeflow.ipc.messages import Message


class WorkerLink(asyncio.Protocol):
    """The connection to a worker; callbacks run on the loop. `lost` is called once, with eof, protocol or closed."""

    def __init__(
        self, received: Callable[[Message], None], writable: Callable[[], None], lost: Callable[[str], None]
    ) -> None:
        self._received = received
        self._writable = writable
        self._lost = lost
        self._reason = "eof"
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._paused = False

    async def connect(self, sock: socket.socket) -> None:
        """Take over the socket."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)

    @property
    def writable(self) -> bool:
        """True if everything sent so far has left this process."""
        return self._transport is not None and not self._paused

    def send(self, message: Message) -> None:
        """Queue a message; ignored if the worker is gone."""
        if self._transport is not None:
            for buffer in pack(message):
                if buffer:
                    self._transport.write(buffer)

    def close(self, reason: str = "closed") -> None:
        """Drop the connection and all unsent messages."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._transport.set_write_buffer_limits(high=0)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._lost(self._reason)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._writable()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while self._transport is not None and (message := self._next_message()) is not None:
                self._received(message)
        except WorkerError:
            self.close("protocol")

    def _next_message(self) -> Message | None:
        if len(self._buffer) < PREFIX.size:
            return None
        header_bytes, payload_bytes = PREFIX.unpack_from(self._buffer)
        check_lengths(header_bytes, payload_bytes)
        end = PREFIX.size + header_bytes + payload_bytes
        if len(self._buffer) < end:
            return None
        header = bytes(self._buffer[PREFIX.size : PREFIX.size + header_bytes])
        payload = bytes(self._buffer[PREFIX.size + header_bytes : end])
        del self._buffer[:end]
        return decode(header, payload)
