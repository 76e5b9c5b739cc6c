"""Control's end of the socket to the worker: on the event loop.

It writes to the socket directly, because an asyncio transport may copy data that it cannot send at once. Pixels are
sent from the memory to which they were decoded, and this process holds no second copy of them.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from itertools import islice

from edgeflow.ipc.channel import pack
from edgeflow.ipc.coding import decode
from edgeflow.ipc.framing import Framer
from edgeflow.ipc.messages import Message
from edgeflow_client.errors import WorkerError

READ_BYTES = 256 << 10  # per turn of the loop
SEND_BUFFER_BYTES = 1 << 20  # if the system permits it: a raw frame leaves in one turn of the loop
MOST_BUFFERS = 64  # per system call, which accepts a thousand


class WorkerLink:
    """The connection to a worker; callbacks run on the loop. `lost` is called once, with eof, protocol or closed."""

    def __init__(
        self, received: Callable[[Message], None], writable: Callable[[], None], lost: Callable[[str], None]
    ) -> None:
        self._received = received
        self._writable = writable
        self._lost = lost
        self._framer = Framer()
        self._unsent: deque[memoryview] = deque()
        self._sock: socket.socket | None = None
        self._deaf = False  # the worker reads nothing more

    def connect(self, sock: socket.socket) -> None:
        """Take over the socket; OSError if it cannot be used: it is closed then."""
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            asyncio.get_running_loop().add_reader(sock, self._read)
        except BaseException:
            sock.close()
            raise
        self._sock = sock

    @property
    def writable(self) -> bool:
        """True if all messages have left this process."""
        return self._sock is not None and not self._unsent and not self._deaf

    def send(self, message: Message) -> None:
        """Send a message, or queue what the socket does not take; ignored if the worker is gone."""
        if self._sock is None or self._deaf:
            return
        waiting = bool(self._unsent)
        self._unsent += [memoryview(buffer).cast("B") for buffer in pack(message) if buffer]
        if not waiting and self._write(self._sock):
            asyncio.get_running_loop().add_writer(self._sock, self._resume)

    def close(self, reason: str = "closed") -> None:
        """Drop the connection and all unsent messages; `lost` is called in the loop's next turn."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(sock)
        loop.remove_writer(sock)
        sock.close()
        self._unsent.clear()
        loop.call_soon(self._lost, reason)

    def _write(self, sock: socket.socket) -> bool:
        """Write what the socket takes; True if something is left."""
        try:
            while self._unsent:
                self._sent(sock.sendmsg(list(islice(self._unsent, MOST_BUFFERS))))
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            self._deaf = True
            self._unsent.clear()
            asyncio.get_running_loop().call_soon(self._hear_out)
        return False

    def _hear_out(self) -> None:
        """Read the last messages of a worker that has ended, such as the reason of a failed start; then close."""
        while self._sock is not None and self._read():
            pass
        self.close("eof")

    def _sent(self, count: int) -> None:
        """Remove `count` sent bytes from the queue."""
        while count:
            first = self._unsent.popleft()
            if count < len(first):
                self._unsent.appendleft(first[count:])
                return
            count -= len(first)

    def _resume(self) -> None:
        if self._sock is None or self._write(self._sock) or self._sock is None:
            return
        asyncio.get_running_loop().remove_writer(self._sock)
        if not self._deaf:
            self._writable()

    def _read(self) -> bool:
        """Read and deliver what has arrived; False if there was nothing."""
        if self._sock is None:
            return False
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self.close("eof")
            return False
        rest = memoryview(data)
        try:
            while rest and self._sock is not None:
                space = self._framer.space
                count = min(len(space), len(rest))
                space[:count], rest = rest[:count], rest[count:]
                if (message := self._framer.filled(count)) is not None:
                    self._received(decode(*message))
        except WorkerError:
            self.close("protocol")
        except Exception:
            self.close("protocol")  # with messages that nobody has handled
            raise
        return True
