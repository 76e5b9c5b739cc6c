"""CRC-32C (Castagnoli), vectorised with numpy, without a C extension.

The data is cut into lanes of 64 bytes that are processed in parallel, four bytes per step; neighbouring lanes are then
joined pairwise, since the checksum is linear: crc(a ‖ b) = shift(crc(a), len(b)) ^ crc(b).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78
LANE_BYTES = 64

Words = NDArray[np.uint32]


def crc32c(parts: Sequence[bytes]) -> int:
    """The checksum of the concatenated parts."""
    size = sum(len(part) for part in parts)
    lanes = 1 << max(0, -(-max(size, 4) // LANE_BYTES) - 1).bit_length()
    buffer = np.zeros(lanes * LANE_BYTES, np.uint8)  # zeros in front change nothing: the state starts at zero
    position = len(buffer) - size
    for part in parts:
        buffer[position : position + len(part)] = np.frombuffer(part, np.uint8)
        position += len(part)
    state = _lanes(_with_initial_value(buffer, size).view("<u4").reshape(lanes, -1))
    span = LANE_BYTES
    while len(state) > 1:
        state = _shift(state[0::2], _shift_tables(span)) ^ state[1::2]
        span *= 2
    return int(state[0]) ^ (0 if size >= 4 else _short_correction(size)) ^ 0xFFFFFFFF


def _with_initial_value(buffer: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Apply the initial value of all ones by inverting the first four bytes."""
    if size >= 4:
        start = len(buffer) - size
        buffer[start : start + 4] ^= 0xFF
    return buffer


def _short_correction(size: int) -> int:
    """The contribution of the initial value after `size` (< 4) bytes, for data too short to carry it."""
    state = 0xFFFFFFFF
    table = _byte_tables()[0]
    for _ in range(size):
        state = (state >> 8) ^ int(table[state & 0xFF])
    return state


def _lanes(words: Words) -> Words:
    """The state of each row of little-endian words [lanes, n], every lane starting from zero."""
    tables = _byte_tables()
    state = np.zeros(len(words), np.uint32)
    for column in range(words.shape[1]):
        state = _shift(state ^ words[:, column], tables[::-1])
    return state


def _shift(state: Words, tables: Words) -> Words:
    """Apply a linear map given as four tables, one per byte of the state, lowest byte first."""
    result: Words = (
        tables[0][state & 0xFF]
        ^ tables[1][(state >> 8) & 0xFF]
        ^ tables[2][(state >> 16) & 0xFF]
        ^ tables[3][state >> 24]
    )
    return result


@lru_cache(maxsize=1)
def _byte_tables() -> Words:
    """[4, 256]: table k is the effect of a byte followed by k zero bytes."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(POLYNOMIAL), first >> 1).astype(np.uint32)
    tables = [first]
    for _ in range(3):
        tables.append((tables[-1] >> 8) ^ first[tables[-1] & 0xFF])
    return np.stack(tables)


@lru_cache(maxsize=32)
def _shift_tables(zeros: int) -> Words:
    """[4, 256]: the map that appends `zeros` (a power of two, at least 4) zero bytes."""
    if zeros == 4:
        return _byte_tables()[::-1]
    half = _shift_tables(zeros // 2)
    return np.stack([_shift(table, half) for table in half])
