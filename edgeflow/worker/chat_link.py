"""The worker's end of its socket to the chat front, for which the worker's loop never waits.

Control hands a socket over for each chat front; a newer one replaces the older. One thread reads and writes. Nothing
is read while enough waits for the loop or for the reader; an answer whose reader is too slow is ended.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from edgeflow.ipc.channel import ChannelClosed, pack
from edgeflow.ipc.chat_messages import (
    ChatDone,
    ChatReady,
    ChatRejected,
    ChatStart,
    ChatStop,
    ChatToken,
    PrefixSet,
    SetPrefix,
)
from edgeflow.ipc.coding import decode
from edgeflow.ipc.framing import Framer
from edgeflow.ipc.messages import Message
from edgeflow.worker.inbox import Inbox
from edgeflow_client.errors import WorkerError
from edgeflow_client.reasons import Reason

MAX_UNSENT_BYTES = 64 << 10
MAX_REQUESTS = 32  # unanswered requests; at the limit nothing more is read
MAX_WAITING = 16  # messages that wait for the loop
BYTES_PER_ID = 5  # the most per token id in a header
MAX_SCHEMA_BYTES = 128 << 10  # for the other fields of a header
MAX_DESCRIPTORS = 8  # per message; only one is expected
RECOVER_S = 0.01
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL
Answer: TypeAlias = ChatToken | ChatDone | ChatRejected | PrefixSet


@dataclass(slots=True, eq=False)
class _ChatConnection:
    """A socket to a chat front."""

    sock: socket.socket
    framer: Framer
    unsent: bytearray = field(default_factory=bytearray)
    """Bytes that did not fit into the socket yet."""


@dataclass(slots=True)
class _OpenRequest:
    """An unanswered request."""

    number: int
    """The chat front's number of it."""
    connection: _ChatConnection
    has_payload: bool
    slow: bool = False
    """It was ended because its answer was not read."""


class ChatLink:
    """The present socket to a chat front. handover: socket over which control sends new ones, one per message.

    In the worker, requests have numbers from this class, which are unique over all chat fronts.
    """

    def __init__(self, handover: socket.socket) -> None:
        self._handover: socket.socket | None = handover
        self._inbox = Inbox()
        self._ready: ChatReady | None = None
        self._lock = threading.Lock()  # held for moments only: the loop takes it too
        self._connection: _ChatConnection | None = None
        self._requests: dict[int, _OpenRequest] = {}
        self._last = 0
        self._thread: threading.Thread | None = None
        self._closing = False
        self._woken, self._waking = socket.socketpair()
        for end in (self._woken, self._waking):
            end.setblocking(False)

    def serve(self, inbox: Inbox, ready: ChatReady | None) -> None:
        """Start taking sockets. ready: sent to each new chat front; None = no chat model, so nothing is read."""
        self._inbox, self._ready = inbox, ready
        inbox.on_chat_taken = self.wake
        self._thread = threading.Thread(target=self._run, name="chat-link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and close the sockets."""
        self._closing = True
        if self._thread is None:
            self._release()
        else:
            self.wake()
            self._thread.join()

    def wake(self) -> None:
        """Wake the thread. May be called from any thread."""
        with contextlib.suppress(OSError):  # full: the thread wakes anyway; closed: the worker ends
            self._waking.send(b"w")

    def send(self, message: Message) -> None:
        """Send an answer of the chat plane. Called by the loop; never blocks."""
        if not isinstance(message, Answer):
            return
        with self._lock:
            request = self._requests.get(message.request)
            if request is None:
                return
            ended = not isinstance(message, ChatToken)
            if ended:
                del self._requests[message.request]
            if request.connection is self._connection:
                self._answer(request, message)
                ended = ended or bool(request.connection.unsent)
        if ended:
            self.wake()

    def _answer(self, request: _OpenRequest, message: Answer) -> None:
        """Write an answer; if a token does not fit, end the request instead."""
        connection = request.connection
        if request.slow:
            if not isinstance(message, ChatToken):
                text = f"more than {MAX_UNSENT_BYTES} bytes of the answer were not read"
                rejected = ChatRejected(request.number, "RESOURCE_EXHAUSTED", text, "", Reason.SLOW_READER.value)
                self._write(connection, pack(rejected)[0])
            return
        number, buffers = message.request, pack(replace(message, request=request.number))
        size = len(connection.unsent) + sum(map(len, buffers))
        if isinstance(message, ChatToken) and size > MAX_UNSENT_BYTES:
            request.slow = True
            self._inbox.put_chat(ChatStop(number, cancelled=True))
        else:
            self._write(connection, *buffers)

    def _write(self, connection: _ChatConnection, *buffers: bytes | memoryview) -> None:
        for buffer in buffers:
            connection.unsent += buffer
        self._flush(connection)

    def _flush(self, connection: _ChatConnection) -> None:
        """Send what fits; an error is noticed by the thread, as the end of the socket."""
        with contextlib.suppress(OSError):
            if connection.unsent:
                del connection.unsent[: connection.sock.send(connection.unsent)]

    # The thread.

    def _run(self) -> None:
        while not self._closing:
            try:
                self._turn()
            except Exception:  # without memory, say; the thread must live
                self._recover()
        self._release()

    def _recover(self) -> None:
        """Drop the connection in any state; control hands over a new one for the next chat front."""
        connection = self._connection
        with contextlib.suppress(Exception):
            if connection is not None:
                self._drop(connection)
        time.sleep(RECOVER_S)

    def _release(self) -> None:
        if self._connection is not None:
            self._drop(self._connection)
        for sock in (self._handover, self._woken, self._waking):
            if sock is not None:
                sock.close()

    def _turn(self) -> None:
        ready = dict(self._poll())
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        connection = self._connection
        if connection is not None:
            self._move(connection, ready.get(connection.sock.fileno(), 0))
        if self._handover is not None and self._handover.fileno() in ready:
            self._take(self._handover)

    def _poll(self) -> list[tuple[int, int]]:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if self._handover is not None:
            poll.register(self._handover, select.POLLIN)
        connection = self._connection
        if connection is not None:
            with self._lock:
                wanted = (select.POLLIN if self._may_read(connection) else 0) | (
                    select.POLLOUT if connection.unsent else 0
                )
            poll.register(connection.sock, wanted)
        return poll.poll()

    def _may_read(self, connection: _ChatConnection) -> bool:
        """True while neither the loop nor the reader has too much to do; only one payload is held at a time."""
        if self._ready is None or len(self._requests) >= MAX_REQUESTS or self._inbox.chat_waiting >= MAX_WAITING:
            return False
        if len(connection.unsent) >= MAX_UNSENT_BYTES // 2:
            return False
        holds = any(request.has_payload for request in self._requests.values())
        return not (holds and connection.framer.before_payload)

    def _move(self, connection: _ChatConnection, events: int) -> None:
        if events & _GONE:
            self._drop(connection)
            return
        with self._lock:
            if events & select.POLLOUT:
                self._flush(connection)
        if events & select.POLLIN:
            try:
                self._read(connection)
            except (OSError, ChannelClosed, WorkerError):
                self._drop(connection)

    def _read(self, connection: _ChatConnection) -> None:
        """Read at most one message."""
        match _receive(connection):
            case None:
                pass
            case ChatStart() as message:
                _check_images(message)
                self._add(connection, message, has_payload=bool(message.payload))
            case SetPrefix() as message:
                self._add(connection, message)
            case ChatStop() as message:
                self._stop(connection, message)
            case _:
                raise WorkerError("the chat front may not send this message")

    def _add(self, connection: _ChatConnection, message: ChatStart | SetPrefix, *, has_payload: bool = False) -> None:
        with self._lock:
            self._last += 1
            self._requests[self._last] = _OpenRequest(message.request, connection, has_payload)
        self._inbox.put_chat(replace(message, request=self._last))

    def _stop(self, connection: _ChatConnection, message: ChatStop) -> None:
        with self._lock:
            own = [(number, each) for number, each in self._requests.items() if each.connection is connection]
        for number, request in own:
            if request.number == message.request:
                self._inbox.put_chat(ChatStop(number, message.cancelled))

    def _take(self, handover: socket.socket) -> None:
        """Take a new socket from control in place of the last one."""
        try:
            data, descriptors, _, _ = socket.recv_fds(
                handover, 16, MAX_DESCRIPTORS, socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
            )
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        socks = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        if not data:
            handover.close()
            self._handover = None  # control is gone, which ends this process (ipc/parent_death.py)
        if data != b"c" or len(socks) != 1:
            for sock in socks:
                sock.close()
            return
        if self._connection is not None:
            self._drop(self._connection)
        self._attach(socks[0])

    def _attach(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        ids_bytes = BYTES_PER_ID * self._ready.length if self._ready is not None else 0
        connection = _ChatConnection(sock, Framer(ids_bytes + MAX_SCHEMA_BYTES))
        with self._lock:
            self._connection = connection
            if self._ready is not None:
                self._write(connection, *pack(self._ready))

    def _drop(self, connection: _ChatConnection) -> None:
        """The chat front has gone: end its requests."""
        with self._lock:
            self._connection = None
            connection.sock.close()
            numbers = [number for number, request in self._requests.items() if request.connection is connection]
        for number in numbers:
            self._inbox.put_chat(ChatStop(number, cancelled=True))


def _receive(connection: _ChatConnection) -> Message | None:
    """Read on; returns a message once it is complete, or None. Reading stops before a payload.

    ChannelClosed at the end of the stream, WorkerError for anything except a message. Headers are kept short, because
    decoding one holds the interpreter's lock, which the loop needs.
    """
    framer = connection.framer
    while True:
        try:
            count = connection.sock.recv_into(framer.space)
        except BlockingIOError:
            return None
        if not count:
            raise ChannelClosed
        if (message := framer.filled(count)) is not None:
            return decode(*message)
        if framer.before_payload:
            return None


def _check_images(message: ChatStart) -> None:
    """WorkerError if the payload does not match the sizes of the images, which a chat front never sends.

    Everything else (token ids, sampling, schema) is checked where it is used, and answered with an error.
    """
    sides = message.sizes
    pixels = sum(height * width for height, width in zip(sides[::2], sides[1::2], strict=False))
    if len(sides) % 2 or any(side <= 0 for side in sides) or 3 * pixels != len(message.payload):
        raise WorkerError("a payload that is not that of its images")
