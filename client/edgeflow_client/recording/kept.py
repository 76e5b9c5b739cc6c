"""The records that each file repeats at its beginning, so that each can be read by itself.

One rule holds for every topic: a record of kind `engine` clears its topic and is kept, `opened` is kept under its
session, `closed` forgets it. They lie in memory that outlives the recorder process, written before records are released
from their rings: what is kept is what was released.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec

MOST_KEPT = 4096  # of a topic; more are those whose end was lost
_CHECK_BYTES = 4


class KeptRecord(msgspec.Struct, frozen=True, array_like=True):
    """A kept record, as it came from its ring."""

    number: int
    head: bytes


class _KeptState(msgspec.Struct, array_like=True):
    version: int = 0
    files: int = 0
    topics: dict[str, dict[str, KeptRecord]] = {}


class KeptRecords:
    """The kept records of all topics, and how many files were begun.

    Two descriptors take turns, so that one of them is whole at any moment.
    """

    def __init__(self, descriptors: tuple[int, int]) -> None:
        """Read what a predecessor left."""
        self._descriptors = descriptors
        self._state = max((_read(descriptor) for descriptor in descriptors), key=lambda state: state.version)
        self._changed = False

    @property
    def files(self) -> int:
        """Files that were begun."""
        return self._state.files

    @files.setter
    def files(self, count: int) -> None:
        self._state.files = count
        self._changed = True

    def add(self, topic: str, number: int, head: bytes, record: dict[str, Any]) -> None:
        """Keep or forget by a record's kind."""
        kind = record.get("kind")
        if kind not in ("engine", "opened", "closed"):
            return
        kept, key = self._state.topics.setdefault(topic, {}), str(record.get("session"))
        if kind == "engine":
            kept.clear()
            key = kind
        if kind == "closed":
            kept.pop(key, None)
        else:
            kept[key] = KeptRecord(number, head)
            while len(kept) > MOST_KEPT:
                del kept[next(iter(kept))]
        self._changed = True

    def __iter__(self) -> Iterator[tuple[str, KeptRecord]]:
        """Topics and records, in the order of each topic's numbers."""
        for topic, kept in self._state.topics.items():
            for record in sorted(kept.values(), key=lambda record: record.number):
                yield topic, record

    def save(self) -> None:
        """Write them, if they changed."""
        if not self._changed:
            return
        self._state.version += 1
        data = msgspec.msgpack.encode(self._state)
        descriptor = self._descriptors[self._state.version % 2]
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, zlib.crc32(data).to_bytes(_CHECK_BYTES, "big") + data, 0)
        self._changed = False


def _read(descriptor: int) -> _KeptState:
    """The state in a descriptor; an empty one if it is not whole."""
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    if len(data) <= _CHECK_BYTES or zlib.crc32(data[_CHECK_BYTES:]) != int.from_bytes(data[:_CHECK_BYTES], "big"):
        return _KeptState()
    return msgspec.msgpack.decode(data[_CHECK_BYTES:], type=_KeptState)
