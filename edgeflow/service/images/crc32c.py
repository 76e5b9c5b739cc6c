"""CRC-32C (Castagnoli)."""

from __future__ import annotations

from collections.abc import Sequence

import google_crc32c

from edgeflow.ipc.framing import Payload

STEP_BYTES = 64 << 10  # the library takes nothing but bytes; copies of this size stay in the processor's cache


def crc32c(parts: Sequence[Payload]) -> int:
    """The checksum of the concatenated parts."""
    state = 0
    for part in parts:
        for begin in range(0, len(part), STEP_BYTES):
            state = google_crc32c.extend(state, bytes(part[begin : begin + STEP_BYTES]))
    return state
