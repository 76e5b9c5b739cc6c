"""Protocol buffers by hand: what no library would write."""

from __future__ import annotations

import struct

VARINT, DOUBLE, BYTES = 0, 1, 2


def varint(value: int) -> bytes:
    """An unsigned number, seven bits a byte, lowest first."""
    low = b""
    while value > 127:
        low += bytes([value & 127 | 128])
        value >>= 7
    return low + bytes([value])


def tag(number: int, kind: int) -> bytes:
    """The bytes before a field's value."""
    return varint(number << 3 | kind)


def sized(number: int, data: bytes) -> bytes:
    """A field of bytes, text or a message."""
    return tag(number, BYTES) + varint(len(data)) + data


def double(number: int, value: float) -> bytes:
    """A field of a 64-bit float."""
    return tag(number, DOUBLE) + struct.pack("<d", value)


def number(number: int, value: int) -> bytes:
    """A field of a variable-length integer."""
    return tag(number, VARINT) + varint(value)
