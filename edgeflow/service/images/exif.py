"""The orientation that a camera writes beside a picture's pixels (EXIF 3.0, a TIFF header and its first directory)."""

from __future__ import annotations

import struct

UPRIGHT = 1
TURNED = range(2, 9)  # mirrored or rotated
PREFIX = b"Exif\0\0"
_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATION, _SHORT, _LONG = 0x0112, 3, 4
_ENTRY_BYTES = 12


def orientation(exif: bytes) -> int:
    """The orientation in a block of metadata; UPRIGHT where it says nothing that can be read. Never fails."""
    tiff = exif.removeprefix(PREFIX)
    order = _ORDERS.get(tiff[:4])
    if order is None or len(tiff) < 8:
        return UPRIGHT
    (start,) = struct.unpack_from(f"{order}I", tiff, 4)
    if start + 2 > len(tiff):
        return UPRIGHT
    (count,) = struct.unpack_from(f"{order}H", tiff, start)
    entries = tiff[start + 2 : start + 2 + count * _ENTRY_BYTES]
    for at in range(0, len(entries) - _ENTRY_BYTES + 1, _ENTRY_BYTES):
        tag, kind = struct.unpack_from(f"{order}HH", entries, at)
        if tag == _ORIENTATION and kind in (_SHORT, _LONG):
            (value,) = struct.unpack_from(f"{order}{'H' if kind == _SHORT else 'I'}", entries, at + 8)
            return int(value) if value in TURNED else UPRIGHT
    return UPRIGHT
