"""Packets between control and a child process: one message each, with descriptors, over a SOCK_SEQPACKET socket."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from edgeflow.ipc.coding import Coding
from edgeflow_client.errors import WorkerError

MAX_DESCRIPTORS = 4
MAX_PACKET_BYTES = 128 << 10
SEND_BUFFER_BYTES = 1 << 20  # as far as the system permits
Kind = TypeVar("Kind")


class DescriptorsLackingError(Exception):
    """A message arrived without its descriptors, because this process has no free number for them."""

    def __init__(self, message: Any) -> None:
        super().__init__("no free descriptors")
        self.message = message


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair of non-blocking packet sockets."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in (ours, theirs):
        each.setblocking(False)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return ours, theirs


class Packets(Generic[Kind]):
    """One end of the socket; never blocks."""

    def __init__(self, sock: socket.socket, coding: Coding[Kind]) -> None:
        self._sock = sock
        self._coding = coding

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: Kind, descriptors: Sequence[int] = ()) -> bool:
        """Send a message, and duplicates of the descriptors; False if it is too long or nobody reads."""
        header, _ = self._coding.encode(message)
        if len(header) > MAX_PACKET_BYTES:
            return False
        try:
            socket.send_fds(self._sock, [header], list(descriptors))
        except OSError:
            return False
        return True

    def receive(self) -> tuple[Kind, list[int]] | None:
        """The next message with its descriptors, which the caller closes; None if there is none yet.

        EOFError once the other end is gone; WorkerError for what is not a message. DescriptorsLackingError carries a
        message whose descriptors are lost.
        """
        try:
            data, descriptors, flags, _ = socket.recv_fds(
                self._sock, MAX_PACKET_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        try:
            if flags & socket.MSG_TRUNC or (flags & socket.MSG_CTRUNC and len(descriptors) >= MAX_DESCRIPTORS):
                raise WorkerError("truncated message between processes")
            message = self._coding.decode(data)
            if flags & socket.MSG_CTRUNC:
                raise DescriptorsLackingError(message)
            return message, descriptors
        except BaseException:
            close_all(descriptors)
            raise

    def close(self) -> None:
        self._sock.close()


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors, whatever state they are in."""
    for each in descriptors:
        with contextlib.suppress(OSError):
            os.close(each)
