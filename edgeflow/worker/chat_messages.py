"""Messages of the chat front as the worker accepts them: read without waiting, and checked."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import numpy as np

from edgeflow.ipc.channel import MAX_PAYLOAD_BYTES, PREFIX, ChannelClosed
from edgeflow.ipc.chat_messages import ChatStart
from edgeflow.ipc.coding import decode
from edgeflow.ipc.messages import Message
from edgeflow_client.errors import WorkerError


@dataclass(slots=True)
class _Part:
    """A part of a message that is being read."""

    space: memoryview
    filled: int = 0

    @property
    def complete(self) -> bool:
        return self.filled == len(self.space)


class Incoming:
    """Assembles the messages that come through a non-blocking socket; lengths are checked before memory is taken.

    header_bytes: at most. Decoding a header holds the interpreter's lock, which the loop needs.
    """

    def __init__(self, sock: socket.socket, header_bytes: int) -> None:
        self._sock = sock
        self._header_bytes = header_bytes
        self._parts: list[_Part] = [_space(PREFIX.size)]
        self._payload_bytes = 0

    @property
    def before_payload(self) -> bool:
        """True when the next thing to read is the beginning of a payload."""
        return len(self._parts) == 2 and self._parts[1].complete and self._payload_bytes > 0

    def read(self) -> Message | None:
        """Read on; returns a message once it is complete, or None.

        It stops before a payload. ChannelClosed at the end, WorkerError for anything but a message.
        """
        if self.before_payload:
            self._parts.append(_space(self._payload_bytes))
        while self._fill(self._parts[-1]):
            if len(self._parts) == 1:
                self._begin()
            elif self.before_payload:
                return None
            else:
                return self._end()
        return None

    def _fill(self, part: _Part) -> bool:
        """Read what is there; True when the part is complete."""
        if not part.complete:
            try:
                received = self._sock.recv_into(part.space[part.filled :])
            except BlockingIOError:
                return False
            if not received:
                raise ChannelClosed
            part.filled += received
        return part.complete

    def _begin(self) -> None:
        header_bytes, self._payload_bytes = PREFIX.unpack(self._parts[0].space)
        if not 0 < header_bytes <= self._header_bytes or self._payload_bytes > MAX_PAYLOAD_BYTES:
            raise WorkerError(f"message of {header_bytes}+{self._payload_bytes} bytes from the chat front")
        self._parts.append(_space(header_bytes))

    def _end(self) -> Message:
        header = self._parts[1].space.tobytes()
        payload = self._parts[2].space if len(self._parts) == 3 else b""
        self._parts, self._payload_bytes = [_space(PREFIX.size)], 0
        return decode(header, payload)


def check_images(message: ChatStart) -> None:
    """Refuse a payload that is not exactly that of its images: the chat front never sends one. WorkerError.

    Everything else (token ids, sampling, schema) is checked where it is used, and answered.
    """
    sides = message.sizes
    pixels = sum(height * width for height, width in zip(sides[::2], sides[1::2], strict=False))
    if len(sides) % 2 or any(side <= 0 for side in sides) or 3 * pixels != len(message.payload):
        raise WorkerError("a payload that is not that of its images")


def _space(size: int) -> _Part:
    """Memory that is not written before it is used: clearing 64 MiB would hold the interpreter's lock."""
    return _Part(np.empty(size, np.uint8).data)
