"""The wire format between processes, without I/O.

A message is u32 header bytes, u32 payload bytes (little endian), header, payload.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from edgeflow_client.errors import WorkerError

Payload: TypeAlias = bytes | memoryview
"""Raw bytes that follow a header: sent from any buffer without a copy."""
Payloads: TypeAlias = Payload | tuple[Payload, ...]
"""One payload, sent from one buffer or from several."""

PREFIX = struct.Struct("<II")
MAX_HEADER_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 64 << 20  # the pixels of all cameras of a frame together


class Framer:
    """Assembles messages. The reader puts bytes into `space` and reports their number with `filled`.

    Lengths are checked before memory is allocated, and a payload's memory only once `space` is requested for it.
    header_bytes: the longest permitted header.
    """

    def __init__(self, header_bytes: int = MAX_HEADER_BYTES) -> None:
        self._most_header_bytes = header_bytes
        self._prefix = bytearray(PREFIX.size)
        self._header = bytearray()
        self._payload = memoryview(b"")
        self._payload_bytes = 0
        self._space = memoryview(self._prefix)

    @property
    def before_payload(self) -> bool:
        """True if a payload comes next, for which `space` would allocate memory."""
        return not self._space

    @property
    def space(self) -> memoryview:
        """Memory for the bytes that come next: the rest of a prefix, a header or a payload."""
        if not self._space:
            self._payload = self._space = _uncleared(self._payload_bytes)
        return self._space

    def filled(self, count: int) -> tuple[bytearray, Payload] | None:
        """Accept `count` bytes in `space`; returns header and payload of a complete message.

        WorkerError for implausible lengths.
        """
        self._space = self._space[count:]
        if self._space:
            return None
        if not self._header:
            header_bytes, self._payload_bytes = PREFIX.unpack(self._prefix)
            if not 0 < header_bytes <= self._most_header_bytes or self._payload_bytes > MAX_PAYLOAD_BYTES:
                raise WorkerError(f"message of {header_bytes}+{self._payload_bytes} bytes between processes")
            self._header = bytearray(header_bytes)
            self._space = memoryview(self._header)
            return None
        if len(self._payload) < self._payload_bytes:
            return None
        message = self._header, self._payload
        self._header, self._payload, self._space = bytearray(), memoryview(b""), memoryview(self._prefix)
        return message


def _uncleared(size: int) -> memoryview:
    """Memory that is not cleared: clearing 64 MiB would hold the interpreter's lock."""
    import numpy as np  # only now: a worker must be bound to its parent before anything slow is imported

    return np.empty(size, np.uint8).data
