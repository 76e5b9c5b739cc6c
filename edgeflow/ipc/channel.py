"""The worker's end of the socket to control: blocking, with one reader thread."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from edgeflow.ipc.coding import decode, encode
from edgeflow.ipc.framing import PREFIX, Framer
from edgeflow.ipc.messages import Message
from edgeflow_client.errors import WorkerError


class ChannelClosed(Exception):
    """The other side closed the connection."""


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
        self._framer = Framer()

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
        while (message := self._framer.filled(self._read_into(self._framer.space))) is None:
            pass
        return decode(*message)

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

    def _read_into(self, space: memoryview) -> int:
        """Fill the space with one system call and no copy, unless a signal interrupts it."""
        try:
            count = self._sock.recv_into(space, 0, socket.MSG_WAITALL)
        except OSError as error:
            raise ChannelClosed from error
        if not count:
            raise ChannelClosed
        return count
