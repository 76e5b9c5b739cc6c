"""Parsing and validation of wire messages: sizes before contents, headers before pixels, all with bounded work.

Image data is lifted out of a message's bytes before protobuf parses the rest: protobuf copies it when it parses and
again at each access, and writes all of it to tell a message's size. The rest is small, so it is parsed and checked as
ever: unknown fields, texts and numbers are protobuf's to judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from edgeflow.config.sections import LimitsConfig
from edgeflow.ipc.framing import Payload
from edgeflow.service.frontends.grpc.checks import check_open, ignored_fields
from edgeflow.service.observation.checks import check_numbers, check_text, text_too_long
from edgeflow.service.observation.pixels import check_image
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.trajectory import Arrived, Playing
from edgeflow_client.types import CameraSpec

SMALL_FIELDS_BYTES = 1024  # bound on a frame's bytes besides pixels, text and proprio
ACT_PERIOD_MS = 1000  # of a single action whose request has no period


FramesMessage = TypeVar("FramesMessage", pb.ClientMessage, pb.ActRequest)
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5  # wire types; a group has none of these
_FRAME = pb.ClientMessage.FRAME_FIELD_NUMBER << 3 | _SIZED  # ActRequest has it under the same number
_IMAGE = pb.Frame.IMAGES_FIELD_NUMBER << 3 | _SIZED
_DATA = pb.Image.DATA_FIELD_NUMBER << 3 | _SIZED
_MOST_FIELDS = 512  # a frame has about a dozen
_LENGTH_BYTES, _NUMBER_BYTES = 5, 10  # of the longest varints


@dataclass(frozen=True, slots=True)
class ParsedMessage(Generic[FramesMessage]):
    """A parsed message, with the data of its frame's images separate from it."""

    message: FramesMessage
    lifted: Sequence[Payload] | None
    """The data of each image, removed from the message; None = it is still in the message."""
    source: bytes = b""
    """The bytes that were parsed; empty for a message that was made here."""

    def image_data(self) -> Sequence[Payload]:
        """The data of each image."""
        return [image.data for image in self.message.frame.images] if self.lifted is None else self.lifted


AnyReceived: TypeAlias = ParsedMessage[pb.ClientMessage] | ParsedMessage[pb.ActRequest]


class Unparsable:
    """Stands for a message that cannot be parsed; deserialisers return it instead of raising."""


UNPARSABLE = Unparsable()


def _parse(kind: type[FramesMessage], data: bytes) -> ParsedMessage[FramesMessage] | Unparsable:
    """Parse a message; never raises."""
    lifted = lift_images(data)
    try:
        source = data if lifted is None else lifted.rest
        message = kind.FromString(source)
    except (DecodeError, ValueError):
        return UNPARSABLE
    return ParsedMessage(message, None if lifted is None else lifted.images, source)


parse_client_message = partial(_parse, pb.ClientMessage)
parse_act_request = partial(_parse, pb.ActRequest)


def check_frame(received: AnyReceived, opened: OpenRequest, limits: LimitsConfig) -> CheckedFrame:
    """Validate everything about a message's frame that needs neither decoding nor a checksum."""
    message = received.message.frame
    _check_text_size(message, limits)
    images = _order_images(received, opened.cameras)
    for index, (data, camera) in enumerate(zip(images, opened.cameras, strict=True)):
        field = f"frame.images[{index}].data"
        if len(data) > limits.image_bytes:
            raise InvalidArgument(
                f"has {len(data)} bytes; the limit is {limits.image_bytes}", field=field, reason=Reason.IMAGE_TOO_LARGE
            )
        check_image(data, camera, field)
    state = check_numbers(message.proprio, opened.numbers)
    instruction = None
    if message.HasField("instruction"):
        instruction = check_text(message.instruction, "frame.instruction", limits)
    checksum = message.crc32c if message.HasField("crc32c") else None
    playing = message.playing
    return CheckedFrame(
        seq=message.seq,
        stamp_ns=message.stamp_ns,
        images=images,
        state=state,
        instruction=instruction,
        crc32c=checksum,
        playing=Playing(playing.seq, playing.step, playing.start_ns) if message.HasField("playing") else None,
        arrived=Arrived(message.arrived.seq, message.arrived.age_ns) if message.HasField("arrived") else None,
        resting=message.resting,
    )


def check_act(
    received: ParsedMessage[pb.ActRequest], alias: str, limits: LimitsConfig
) -> tuple[OpenRequest, CheckedFrame]:
    """Validate a single action's request; RequestErrors name the field and the limit."""
    request = received.message
    ignored = ignored_fields(request, received.source)
    request.open.control_period_ms = request.open.control_period_ms or ACT_PERIOD_MS
    request.frame.seq = request.frame.seq or 1
    opened = check_open(request.open, alias, limits, ignored)
    return opened, check_frame(received, opened, limits)


def _check_text_size(message: pb.Frame, limits: LimitsConfig) -> None:
    """Bound the instruction's size without decoding it, which takes a millisecond when it is long."""
    rest = message.ByteSize() - sum(image.ByteSize() for image in message.images) - 4 * len(message.proprio)
    if rest > limits.text_bytes + SMALL_FIELDS_BYTES:
        raise text_too_long("frame.instruction", limits)


def _order_images(received: AnyReceived, cameras: tuple[CameraSpec, ...]) -> tuple[Payload, ...]:
    """The images in the order of the cameras, whether given by name or by position."""
    messages = received.message.frame.images
    if len(messages) != len(cameras):
        raise InvalidArgument(
            f"has {len(messages)} images; the session was opened with {len(cameras)} cameras",
            field="frame.images",
            reason=Reason.CAMERA_MISSING if len(messages) < len(cameras) else Reason.CAMERA_EXTRA,
        )
    images = received.image_data()
    if not any(message.camera for message in messages):
        return tuple(images)
    by_name = {message.camera: data for message, data in zip(messages, images, strict=True)}
    missing = [camera.name for camera in cameras if camera.name not in by_name]
    if missing:
        raise InvalidArgument(
            f"lacks an image from camera {missing[0]!r}", field="frame.images", reason=Reason.CAMERA_MISSING
        )
    return tuple(by_name[camera.name] for camera in cameras)


class Lifted(NamedTuple):
    """A message in two parts."""

    rest: bytes
    """The message with images that have no data."""
    images: tuple[memoryview, ...]
    """The data of each image of the frame, in order: views of the message's bytes."""


class _UnusualError(Exception):
    """The bytes are broken, or form a message that no encoder writes."""


def lift_images(data: bytes) -> Lifted | None:
    """The parts of a stream message or of an ActRequest; None if protobuf has to judge the bytes as they came.

    Nothing is lifted from what has groups, padded varints, two frames or hundreds of fields, nor from broken bytes.
    """
    try:
        return _MessageScan(data).message()
    except _UnusualError:
        return None


class _Field(NamedTuple):
    tag: int
    start: int
    """Position of the tag."""
    value: int
    """Position of the value, after its length."""
    end: int


class _MessageScan:
    """The bytes of a message, and the number of fields that may still be read."""

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
                data = self._view[field.value : field.end]  # if a field is repeated, the last one counts
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
