"""Image data is lifted out of a message's bytes before protobuf parses the rest.

Protobuf copies image data when it parses and again at each access, and writes all of it to tell a message's size. The
rest is small, so it is parsed and checked as ever: unknown fields, texts and numbers are protobuf's to judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from edgeflow_client.rpc import control_pb2 as pb

_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5  # wire types; a group has none of these
_FRAME = pb.ClientMessage.FRAME_FIELD_NUMBER << 3 | _SIZED  # ActRequest has it under the same number
_IMAGE = pb.Frame.IMAGES_FIELD_NUMBER << 3 | _SIZED
_DATA = pb.Image.DATA_FIELD_NUMBER << 3 | _SIZED
_MOST_FIELDS = 512  # a frame has about a dozen
_LENGTH_BYTES, _NUMBER_BYTES = 5, 10  # of the longest varints


class Lifted(NamedTuple):
    """A message in two parts."""

    rest: bytes
    """The message with images that have no data."""
    images: tuple[memoryview, ...]
    """The data of each image of the frame, in order: views of the message's bytes."""


class _UnusualError(Exception):
    """The bytes are broken, or a message such as no encoder writes."""


def lift_images(data: bytes) -> Lifted | None:
    """The parts of a stream message or of an ActRequest; None if protobuf has to judge the bytes as they came.

    Nothing is lifted from what has groups, padded varints, two frames or hundreds of fields, nor from broken bytes.
    """
    try:
        return _Scan(data).message()
    except _UnusualError:
        return None


class _Field(NamedTuple):
    tag: int
    start: int
    """Where the tag begins."""
    value: int
    """Where the value begins, after its length."""
    end: int


class _Scan:
    """The message's bytes, and how many fields may still be read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._view = memoryview(data)
        self._fields_left = _MOST_FIELDS
        self._images: list[memoryview] = []

    def message(self) -> Lifted:
        rest: list[bytes | memoryview] = []
        frames = 0
        for field in self._fields(0, len(self._data)):
            if field.tag == _FRAME:
                frames += 1
                rest += _sized(_FRAME, self._frame(field))
            else:
                rest.append(self._view[field.start : field.end])
        if frames > 1:  # protobuf may merge them or drop the first one
            raise _UnusualError
        return Lifted(b"".join(rest) if frames else self._data, tuple(self._images))

    def _frame(self, frame: _Field) -> bytes:
        rest: list[bytes | memoryview] = []
        for field in self._fields(frame.value, frame.end):
            if field.tag == _IMAGE:
                rest += _sized(_IMAGE, self._image(field))
            else:
                rest.append(self._view[field.start : field.end])
        return b"".join(rest)

    def _image(self, image: _Field) -> bytes:
        rest: list[memoryview] = []
        data = self._view[:0]
        for field in self._fields(image.value, image.end):
            if field.tag == _DATA:
                data = self._view[field.value : field.end]  # of several, the last one counts
            else:
                rest.append(self._view[field.start : field.end])
        self._images.append(data)
        return b"".join(rest)

    def _fields(self, position: int, end: int) -> Iterator[_Field]:
        """The fields of the message that lies between these positions."""
        while position < end:
            self._fields_left -= 1
            start = position
            tag, position = self._varint(position, end, _LENGTH_BYTES)
            kind = tag & 7
            if kind == _SIZED:
                size, position = self._varint(position, end, _LENGTH_BYTES)
                stop = position + size
            elif kind == _VARINT:
                _, stop = self._varint(position, end, _NUMBER_BYTES)
            elif kind == _FIXED32:
                stop = position + 4
            elif kind == _FIXED64:
                stop = position + 8
            else:
                raise _UnusualError
            if stop > end or tag < 8 or self._fields_left < 0:  # the field number 0 is none
                raise _UnusualError
            yield _Field(tag, start, position, stop)
            position = stop

    def _varint(self, position: int, end: int, most: int) -> tuple[int, int]:
        """A number in its shortest form, and where it ends."""
        value = 0
        for index in range(min(most, end - position)):
            byte = self._data[position + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if index and not byte:
                    break
                return value, position + index + 1
        raise _UnusualError


def _sized(tag: int, value: bytes) -> list[bytes]:
    """The parts of a field with a length."""
    return [bytes((tag,)), _varint(len(value)), value]


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
