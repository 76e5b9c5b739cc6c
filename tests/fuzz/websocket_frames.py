"""Frames of a websocket's client in bytes, for what no library sends."""

from __future__ import annotations

import struct

LAST = 0x80  # set in the kind of a message's last frame
CONTINUATION, TEXT, BINARY = 0, LAST | 1, LAST | 2
CLOSE, PING, PONG = LAST | 8, LAST | 9, LAST | 10


def head(size: int, kind: int = BINARY) -> bytes:
    """The beginning of a frame with this many bytes; its mask of zeros leaves them as they are."""
    if size < 126:
        return bytes([kind, 0x80 | size]) + bytes(4)
    if size < 1 << 16:
        return struct.pack(">BBH", kind, 0x80 | 126, size) + bytes(4)
    return struct.pack(">BBQ", kind, 0x80 | 127, size) + bytes(4)


def frame(data: bytes, kind: int = BINARY) -> bytes:
    """A frame, by default a whole message."""
    return head(len(data), kind) + data
