"""A ring of records in memory that two processes share: one writes without waiting, the other reads in its own time.

Writing is a copy into memory: no system call, no lock between the processes. A record that finds no room is lost and
counted. Every record has a number, lost ones too, so that a reader sees by the gap what is missing. What was written
outlives its writer, and what was read but not released outlives its reader.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

HEADER_BYTES = 4096
ALIGNMENT = 8
LEAST_BYTES = 1 << 16
_PREFIX = struct.Struct("=IIQ")  # bytes of the head, bytes of the payload, number
_WRAP = 0xFFFFFFFF  # instead of the bytes of a head: the rest up to the end is unused
_WRITTEN, _RELEASED, _NEXT, _LOST, _EPOCH = range(0, 80, 16)  # words of the header, each in a cache line of its own
_KEPT_FREE = 16  # a part of so many is for records without payload


@dataclass(frozen=True, slots=True)
class RingRecord:
    """A record in the ring."""

    number: int
    """Records of this ring before it, lost ones included."""
    head: bytes
    payload: memoryview
    """Raw bytes in the ring, valid until they are released."""
    end: int
    """The argument of `release` once this record and all before it are done with."""


class RecordRing:
    """One ring. Any thread of one process may write, any one thread of another one may read.

    The reader takes only what had been written at its previous look. A processor may make the writer's stores visible
    in another order; by the next look all of them are.
    """

    def __init__(self, descriptor: int) -> None:
        """Map the ring of a descriptor, which stays the caller's. ValueError if it cannot be one."""
        size = os.fstat(descriptor).st_size
        if size < HEADER_BYTES + LEAST_BYTES or (size - HEADER_BYTES) % ALIGNMENT:
            raise ValueError(f"{size} bytes of memory hold no ring of records")
        self.descriptor = descriptor
        self.capacity = size - HEADER_BYTES
        self._map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        self._lock = threading.Lock()
        self._words = memoryview(self._map)[:HEADER_BYTES].cast("Q")
        self._seen = self._words[_WRITTEN]  # where the last look found the writer
        self._read = self._words[_RELEASED]

    @classmethod
    def make(cls, capacity: int) -> RecordRing:
        """A new ring of about so many bytes. OSError without memory."""
        capacity = max(capacity, LEAST_BYTES) // ALIGNMENT * ALIGNMENT
        descriptor = memory_file()
        try:
            size = HEADER_BYTES + capacity
            os.ftruncate(descriptor, size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)  # now: without memory, writing would raise SIGBUS
            ring = cls(descriptor)
            ring._words[_EPOCH] = time.time_ns() - time.monotonic_ns()
            return ring
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def epoch_ns(self) -> int:
        """Nanoseconds since 1970 at the zero of the monotonic clock, by the system's clock when the ring was made.

        Whoever writes takes times from it, so that they agree when that clock is set between two writers.
        """
        return self._words[_EPOCH]

    # The writer's side.

    @property
    def lost(self) -> int:
        """Records that found no room, of all writers since the ring was made."""
        return self._words[_LOST]

    def put(self, head: bytes, parts: Sequence[bytes | memoryview] = ()) -> bool:
        """Write a record; False if there is no room, and it is lost.

        The last room is for records without parts: images that come too fast cost no openings.
        """
        length = 0
        for part in parts:
            length += len(part)
        size = _aligned(_PREFIX.size + len(head) + length)
        memory, words, capacity = self._map, self._words, self.capacity
        with self._lock:
            number, start = words[_NEXT], words[_WRITTEN]
            words[_NEXT] = number + 1
            rest = capacity - start % capacity
            begin = start if size <= rest else start + rest
            if begin + size - words[_RELEASED] > (capacity - capacity // _KEPT_FREE if length else capacity):
                words[_LOST] += 1
                return False
            if begin != start:
                struct.pack_into("=I", memory, HEADER_BYTES + start % capacity, _WRAP)
            at = HEADER_BYTES + begin % capacity
            _PREFIX.pack_into(memory, at, len(head), length, number)
            at += _PREFIX.size
            memory[at : at + len(head)] = head
            at += len(head)
            for part in parts:
                memory[at : at + len(part)] = part
                at += len(part)
            words[_WRITTEN] = begin + size
            return True

    def lose(self) -> None:
        """Count a record as lost that could not be made."""
        with self._lock:
            self._words[_NEXT] += 1
            self._words[_LOST] += 1

    # The reader's side.

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are written and not released."""
        return self._words[_WRITTEN] - self._words[_RELEASED]

    def look(self) -> Iterator[RingRecord]:
        """The records that had been written at the previous look and were not read.

        What is damaged, by a stray write of its writer's process, is skipped, with all that was written until then.
        """
        until, self._seen = self._seen, self._words[_WRITTEN]
        while self._read < until:
            try:
                record = self._next(until)
            except ValueError:
                self._read = until
                return
            yield record

    def _next(self, until: int) -> RingRecord:
        at, rest = self._read % self.capacity, self.capacity - self._read % self.capacity
        (length,) = struct.unpack_from("=I", self._map, HEADER_BYTES + at)
        if length == _WRAP:
            self._read += rest
            at, rest = 0, self.capacity
        if rest < _PREFIX.size:
            raise ValueError("a ring of records is damaged")
        head, payload, number = _PREFIX.unpack_from(self._map, HEADER_BYTES + at)
        size = _aligned(_PREFIX.size + head + payload)
        if size > rest or self._read + size > until:
            raise ValueError("a ring of records is damaged")
        start = HEADER_BYTES + at + _PREFIX.size
        self._read += size
        view = memoryview(self._map)[start + head : start + head + payload]
        return RingRecord(number, self._map[start : start + head], view, self._read)

    def release(self, end: int) -> None:
        """Give back the room up to the end of a record. Views of payloads before it are invalid now."""
        self._words[_RELEASED] = end

    def close(self) -> None:
        """Close the descriptor. The memory goes with the last process and the last view."""
        os.close(self.descriptor)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def memory_file() -> int:
    """A descriptor of memory without a name, which a child may inherit."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("edgeflow-records", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
