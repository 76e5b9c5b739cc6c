"""Validation of wire messages: sizes before contents, headers before pixels, all with bounded work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from edgeflow.config.sections import LimitsConfig
from edgeflow.ipc.framing import Payload
from edgeflow.service.grpc.fields import check_text, refuse_unknown_fields, text_too_long
from edgeflow.service.grpc.lifting import lift_images
from edgeflow.service.grpc.opening import check_open
from edgeflow.service.grpc.state import check_numbers
from edgeflow.service.images.images import check_image
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.trajectory import Arrived, Playing
from edgeflow_client.types import CameraSpec

SMALL_FIELDS_BYTES = 1024  # bound on a frame's bytes beside pixels, text and proprio
ACT_PERIOD_MS = 1000  # of a single action whose request has no period


FramesMessage = TypeVar("FramesMessage", pb.ClientMessage, pb.ActRequest)


@dataclass(frozen=True, slots=True)
class Received(Generic[FramesMessage]):
    """A parsed message, with the data of its frame's images beside it."""

    message: FramesMessage
    lifted: Sequence[Payload] | None
    """One per image, none of which has data in the message; None = they have."""

    def image_data(self) -> Sequence[Payload]:
        """The data of each image."""
        return [image.data for image in self.message.frame.images] if self.lifted is None else self.lifted


AnyReceived: TypeAlias = Received[pb.ClientMessage] | Received[pb.ActRequest]


class Unparsable:
    """Stands for a message that cannot be parsed; deserialisers return it instead of raising."""


UNPARSABLE = Unparsable()


def parse_client_message(data: bytes) -> Received[pb.ClientMessage] | Unparsable:
    """Parse a stream message; never raises."""
    return _parse(pb.ClientMessage, data)


def parse_act_request(data: bytes) -> Received[pb.ActRequest] | Unparsable:
    """Parse a unary request; never raises."""
    return _parse(pb.ActRequest, data)


def _parse(kind: type[FramesMessage], data: bytes) -> Received[FramesMessage] | Unparsable:
    lifted = lift_images(data)
    try:
        message = kind.FromString(data if lifted is None else lifted.rest)
    except (DecodeError, ValueError):
        return UNPARSABLE
    return Received(message, None if lifted is None else lifted.images)


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
    return CheckedFrame(
        seq=message.seq,
        stamp_ns=message.stamp_ns,
        images=images,
        state=state,
        instruction=instruction,
        crc32c=checksum,
        playing=Playing(message.playing.seq, message.playing.step) if message.HasField("playing") else None,
        arrived=Arrived(message.arrived.seq, message.arrived.age_ns) if message.HasField("arrived") else None,
    )


def check_act(received: Received[pb.ActRequest], alias: str, limits: LimitsConfig) -> tuple[OpenRequest, CheckedFrame]:
    """Validate a single action's request; RequestErrors name the field and the limit."""
    request = received.message
    refuse_unknown_fields(request, "message")
    request.open.control_period_ms = request.open.control_period_ms or ACT_PERIOD_MS
    request.frame.seq = request.frame.seq or 1
    opened = check_open(request.open, alias, limits)
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
