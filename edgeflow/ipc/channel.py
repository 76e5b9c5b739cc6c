"""The worker's end of the socket to control: length-prefixed messages, blocking, one reader thread.

Frame on the wire: u32 header bytes, u32 payload bytes (little endian), header, payload.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

from edgeflow.ipc.coding import decode, encode
from edgeflow.ipc.messages import Message
from edgeflow_client.errors import WorkerError

PREFIX = struct.Struct("<II")
MAX_HEADER_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 64 << 20  # the pixels of all cameras of a frame together


class ChannelClosed(Exception):
    """The other side closed the connection."""


def check_lengths(header_bytes: int, payload_bytes: int) -> None:
    """Refuse implausible lengths before anything is allocated."""
    if header_bytes > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise WorkerError(f"message of {header_bytes}+{payload_bytes} bytes between control and worker")


def pack(message: Message) -> list[bytes | memoryview]:
    """The buffers to send for a message, in order."""
    header, payload = encode(message)
    buffers = payload if isinstance(payload, tuple) else (payload,)
    return [PREFIX.pack(len(header), sum(map(len, buffers))) + header, *buffers]


class BlockingChannel:
    """A blocking channel. Any thread may send; one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(True)
        self._send_lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message; ChannelClosed if control is gone."""
        buffers = pack(message)
        try:
            with self._send_lock:
                for buffer in buffers:
                    if buffer:
                        self._sock.sendall(buffer)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self) -> Message:
        """Wait for a message; ChannelClosed at the end of the stream."""
        header_bytes, payload_bytes = PREFIX.unpack(self._read(PREFIX.size))
        check_lengths(header_bytes, payload_bytes)
        header = self._read(header_bytes)
        return decode(header, self._read(payload_bytes) if payload_bytes else b"")

    def read_forever(self, deliver: Callable[[Message], None], closed: Callable[[], None]) -> threading.Thread:
        """Deliver messages from a daemon thread until the stream ends or becomes unreadable; then call `closed`."""

        def loop() -> None:
            try:
                while True:
                    deliver(self.receive())
            except (ChannelClosed, WorkerError):
                pass
            finally:
                closed()

        thread = threading.Thread(target=loop, name="channel-reader", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Shut both directions; a blocked receive ends with ChannelClosed."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _read(self, size: int) -> bytes:
        """Read exactly `size` bytes: one system call and no copy unless a signal interrupts it."""
        parts: list[bytes] = []
        while size:
            try:
                part = self._sock.recv(size, socket.MSG_WAITALL)
            except OSError as error:
                raise ChannelClosed from error
            if not part:
                raise ChannelClosed
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
