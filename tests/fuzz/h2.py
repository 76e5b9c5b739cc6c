"""HTTP/2 by hand, for what a library would not send."""

from __future__ import annotations

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RST_STREAM, SETTINGS = 1, 3, 4
END_HEADERS = 4
CANCEL = b"\0\0\0\x08"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(path: bytes) -> bytes:
    """A call of gRPC in HPACK, nothing indexed anew: POST, http, path, authority, content-type, te."""
    fields = [b"\x83\x86", b"\x04", path, b"\x01", b"x", b"\x0f\x10", b"application/grpc", b"\x00", b"te", b"trailers"]
    markers = {b"\x83\x86", b"\x04", b"\x01", b"\x0f\x10", b"\x00"}
    return b"".join(field if field in markers else bytes([len(field)]) + field for field in fields)


def call_reset_at_once(stream: int, block: bytes) -> bytes:
    """A call whose headers are `block`, and its end before anything else of it."""
    return frame(HEADERS, END_HEADERS, stream, block) + frame(RST_STREAM, 0, stream, CANCEL)
