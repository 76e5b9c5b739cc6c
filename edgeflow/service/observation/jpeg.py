"""The structure of a JPEG file (ITU-T T.81, annex B), read from its markers without decoding.

Only a small part of the format is supported: Huffman-coded sequential or progressive, 8 bits per sample, one or three
components, one frame. The rest is rejected here, before it reaches a decoder. The orientation that a camera writes
beside the pixels is read too (EXIF 3.0, a TIFF header and its first directory).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from edgeflow.ipc.framing import Payload
from edgeflow_client.errors import DataLoss, InvalidArgument, RequestError
from edgeflow_client.reasons import Reason

UPRIGHT = 1
TURNED = range(2, 9)  # mirrored or rotated
PREFIX = b"Exif\0\0"
_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATION, _SHORT, _LONG = 0x0112, 3, 4
_ENTRY_BYTES = 12
MAX_SCANS = 16  # a progressive JPEG has about ten; each costs a pass over all coefficients
MAX_SEGMENTS = 256
_END, _SCAN, _EXIF = 0xD9, 0xDA, 0xE1
_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended sequential, progressive
_REJECTED = {
    **dict.fromkeys((0xC3, 0xC7, 0xCB, 0xCF), "lossless"),
    **dict.fromkeys((0xC5, 0xC6, 0xCD, 0xCE, 0xDE, 0xDF), "hierarchical"),
    **dict.fromkeys((0xC9, 0xCA, 0xCC), "arithmetic-coded"),
    0xC8: "extended",
    0xDC: "with its height after the pixels",
}
_ALONE = {0x01, *range(0xD0, 0xD9)}  # markers without a length; none belongs between segments
_FILL = re.compile(rb"\xff+")
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # a marker that is neither stuffing nor a restart
_PADDING = re.compile(rb"\x00*|\xff*")


def orientation(exif: bytes) -> int:
    """The orientation in a block of metadata; UPRIGHT if it has none that can be read. Never fails."""
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


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """The properties declared in a JPEG's headers."""

    width: int
    height: int
    components: int
    scans: int
    orientation: int


def read_jpeg(data: Payload, field: str, *, more: bool = False) -> JpegHeader:
    """Walk all markers to the end of the image; RequestErrors name the fault. more: data may follow the image."""
    if data[:3] != b"\xff\xd8\xff":
        raise _reject("is not a JPEG image", field, Reason.IMAGE_WRONG_FORMAT)
    return _Walk(data, field, more).run()


class _Walk:
    """A position in a file, and what was found so far."""

    def __init__(self, data: Payload, field: str, more: bool) -> None:
        self._data = data
        self._field = field
        self._more = more
        self._position = 2
        self._size: tuple[int, int, int] | None = None  # width, height, components
        self._scans = 0
        self._orientation: int | None = None

    def run(self) -> JpegHeader:
        for _ in range(MAX_SEGMENTS):
            marker = self._marker()
            if marker == _END:
                return self._finish()
            self._segment(marker)
        raise _reject(f"has more than {MAX_SEGMENTS} segments", self._field, Reason.IMAGE_UNREADABLE)

    def _marker(self) -> int:
        """The marker at the present position, after any fill bytes."""
        fill = _FILL.match(self._data, self._position)
        position = fill.end() if fill else self._position
        if position == len(self._data):
            raise _truncated(self._field)
        if fill is None:
            raise self._broken("a marker is missing")
        self._position = position + 1
        return self._data[position]

    def _segment(self, marker: int) -> None:
        if marker in _REJECTED:
            raise _reject(
                f"is an unsupported kind of JPEG image: {_REJECTED[marker]}", self._field, Reason.IMAGE_WRONG_FORMAT
            )
        if marker in _ALONE or marker < 0xC0:
            raise self._broken(f"unexpected marker 0x{marker:02X}")
        length = self._byte(self._position) << 8 | self._byte(self._position + 1)
        body = self._data[self._position + 2 : self._position + length]
        if length < 2:
            raise self._broken("a segment length below 2")
        if len(body) != length - 2:
            raise _truncated(self._field)
        self._position += length
        if marker in _FRAMES:
            self._frame(body)
        elif marker == _SCAN:
            self._scan()
        elif marker == _EXIF and self._orientation is None and body[: len(PREFIX)] == PREFIX:
            self._orientation = orientation(bytes(body))

    def _frame(self, body: Payload) -> None:
        """Read a frame header: precision, height, width, number of components, three bytes per component."""
        if self._size is not None:
            raise self._broken("two frame headers")
        if len(body) < 6 or len(body) != 6 + 3 * body[5]:
            raise self._broken("a frame header of the wrong length")
        if body[0] != 8:
            text = f"has {body[0]} bits per sample; only 8 are supported"
            raise _reject(text, self._field, Reason.IMAGE_WRONG_FORMAT)
        if body[5] not in (1, 3):
            text = f"has {body[5]} colour components; only 1 (grey) and 3 are supported"
            raise _reject(text, self._field, Reason.IMAGE_WRONG_FORMAT)
        height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
        if not width or not height:
            raise _reject(f"is {width}x{height}", self._field, Reason.IMAGE_WRONG_SIZE)
        self._size = (width, height, body[5])

    def _scan(self) -> None:
        if self._size is None:
            raise self._broken("pixels before the frame header")
        self._scans += 1
        if self._scans > MAX_SCANS:
            raise _reject(f"has more than {MAX_SCANS} scans", self._field, Reason.IMAGE_WRONG_FORMAT)
        found = _AFTER_SCAN.search(self._data, self._position)
        if found is None:
            raise _truncated(self._field)
        self._position = found.start()

    def _finish(self) -> JpegHeader:
        if self._size is None or not self._scans:
            raise self._broken("no pixels")
        if not self._more and not _PADDING.fullmatch(self._data, self._position):
            raise _reject("has data after the end of the image", self._field, Reason.IMAGE_TRAILING_DATA)
        return JpegHeader(*self._size, self._scans, self._orientation or UPRIGHT)

    def _byte(self, position: int) -> int:
        if position >= len(self._data):
            raise _truncated(self._field)
        return self._data[position]

    def _broken(self, what: str) -> RequestError:
        return _reject(f"is not a readable JPEG image: {what}", self._field, Reason.IMAGE_UNREADABLE)


def _reject(text: str, field: str, reason: str) -> InvalidArgument:
    return InvalidArgument(text, field=field, reason=reason)


def _truncated(field: str) -> DataLoss:
    return DataLoss("is a truncated JPEG image", field=field, reason=Reason.IMAGE_TRUNCATED)
