"""Packets between control and a child process: one message each, with descriptors, over a SOCK_SEQPACKET socket.

The descriptors hold sealed memory, which crosses without a copy and without trust: a sealed memory file can neither
change nor shrink, so that its reader may map it and check it once.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
from collections.abc import Callable, Sequence
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
        """Send a message and duplicates of the descriptors; False if it is too long or the reader is gone or slow."""
        header, _ = self._coding.encode(message)
        if len(header) > MAX_PACKET_BYTES:
            return False
        try:
            socket.send_fds(self._sock, [header], list(descriptors))
        except OSError:
            return False
        return True

    def receive(self) -> tuple[Kind, list[int]] | None:
        """The next message with its descriptors, which the caller closes; None if none has arrived.

        EOFError once the other end is gone; WorkerError for an invalid message. DescriptorsLackingError carries a
        message whose descriptors were lost.
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
            # MSG_CTRUNC with fewer descriptors: this process has no free numbers, which is not the sender's fault
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
    """Close descriptors; errors are ignored."""
    for each in descriptors:
        with contextlib.suppress(OSError):
            os.close(each)


SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def seal(data: bytes | memoryview) -> int:
    """A descriptor of sealed memory with these bytes; the caller closes it. OSError without memory or descriptors."""
    fd = os.memfd_create("edgeflow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(fd, rest) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def seal_parts(parts: Sequence[bytes | memoryview]) -> Sealed:
    """Sealed memory with these bytes, one part after the other. OSError without memory or descriptors."""
    made = Sealed(os.memfd_create("edgeflow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    try:
        rest = [memoryview(part).cast("B") for part in parts]
        while rest:
            written = os.writev(made.descriptor, rest)
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if rest:
                rest[0] = rest[0][written:]
        fcntl.fcntl(made.descriptor, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        made.close()
        raise
    return made


class Sealed:
    """A descriptor of sealed memory, closed with this object."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor now."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1


def seal_written(size: int, write: Callable[[memoryview], None]) -> Sealed:
    """Sealed memory of `size` bytes that `write` fills in place; it keeps no reference to them.

    OSError without memory or descriptors. After an error of `write` the descriptor is closed at once, and the memory
    freed at the latest with the error's traceback, whose frames may hold views of it.
    """
    made = Sealed(os.memfd_create("edgeflow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    try:
        if size:
            os.posix_fallocate(made.descriptor, 0, size)  # now: without memory, writing would raise SIGBUS
            _fill(mmap.mmap(made.descriptor, size), write)
        fcntl.fcntl(made.descriptor, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        made.close()
        raise
    return made


def _fill(mapped: mmap.mmap, write: Callable[[memoryview], None]) -> None:
    """Write, then unmap: memory that is mapped for writing cannot be sealed."""
    try:
        with memoryview(mapped) as memory:
            write(memory)
    except BaseException:
        with contextlib.suppress(BufferError):  # views that the traceback holds
            mapped.close()
        raise
    mapped.close()


def unseal(fd: int, most: int) -> memoryview:
    """The bytes of a descriptor, mapped; WorkerError if it is not sealed or holds more than `most` bytes.

    The descriptor stays open and belongs to the caller. The mapping lives as long as the view and has its own one.
    """
    size = _size(fd, most)
    return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ)) if size else memoryview(b"")


def read_sealed(fd: int, most: int) -> bytes:
    """The bytes of a descriptor, copied, which needs no further descriptor. WorkerError as in `unseal`."""
    size = _size(fd, most)
    data = os.pread(fd, size, 0)
    if len(data) != size:
        raise WorkerError("memory between processes cannot be read")
    return data


def _size(fd: int, most: int) -> int:
    """The size of sealed memory, once checked."""
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS
        size = os.fstat(fd).st_size
    except OSError:
        sealed, size = False, 0
    if not sealed:
        raise WorkerError("memory between processes is not sealed")
    if size > most:
        raise WorkerError(f"{size} bytes of memory between processes exceed the limit of {most}")
    return size
