"""Validation of wire messages: sizes before contents, headers before pixels, all with bounded work."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from functools import cache

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from edgeflow.config import LimitsConfig
from edgeflow.errors import DataLoss, InvalidArgument, NotFound
from edgeflow.ipc.messages import Payload
from edgeflow.reasons import Reason
from edgeflow.rpc import control_pb2 as pb
from edgeflow.service.images.crc32c import crc32c
from edgeflow.service.images.images import check_image, decode_jpeg
from edgeflow.service.sessions.requests import CheckedFrame, OpenRequest
from edgeflow.types import MOST_TOLERANCE_BINS, CameraSpec, ImageFormat, Mode

MAX_NAME = 64
MAX_PARTS = 64  # messages in a repeated field
SMALL_FIELDS_BYTES = 1024  # bound on a frame's bytes beside pixels, text and proprio
MAX_PROPRIO = 1e6  # a larger value means a broken sensor, whatever its unit
MAX_PERIOD_MS = 10_000
ACT_PERIOD_MS = 1000  # of a single action whose request has no period
MAX_AGE_MS = 60_000
_FORMATS = {pb.IMAGE_FORMAT_JPEG: ImageFormat.JPEG, pb.IMAGE_FORMAT_RGB8: ImageFormat.RGB8}
_MODES = {
    pb.MODE_UNSPECIFIED: None,
    pb.MODE_SERIAL: Mode.SERIAL,
    pb.MODE_PIPELINED: Mode.PIPELINED,
    pb.MODE_DEPTH: Mode.DEPTH,
    pb.MODE_SPECULATIVE: Mode.SPECULATIVE,
    pb.MODE_AUTO: Mode.AUTO,
}
_REFUSED_CATEGORIES = {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"}


class Unparsable:
    """Stands for a message that cannot be parsed; deserialisers return it instead of raising."""


UNPARSABLE = Unparsable()


def parse_client_message(data: bytes) -> pb.ClientMessage | Unparsable:
    """Parse a stream message; never raises."""
    try:
        return pb.ClientMessage.FromString(data)
    except (DecodeError, ValueError):
        return UNPARSABLE


def parse_act_request(data: bytes) -> pb.ActRequest | Unparsable:
    """Parse a unary request; never raises."""
    try:
        return pb.ActRequest.FromString(data)
    except (DecodeError, ValueError):
        return UNPARSABLE


def check_open(message: pb.Open, alias: str, limits: LimitsConfig) -> OpenRequest:
    """Validate an Open; RequestErrors name the field and the limit."""
    if message.model not in ("", alias):
        raise NotFound(f"unknown model; this service serves {alias!r}", field="open.model", reason=Reason.MODEL_UNKNOWN)
    if message.mode not in _MODES:
        raise InvalidArgument(
            "unknown mode; use serial, pipelined, depth, speculative or auto",
            field="open.mode",
            reason=Reason.MODE_UNKNOWN,
        )
    mode = _MODES[message.mode]
    _check_depth(mode, message.depth)
    _check_speculation(mode, message.tolerance_bins, message.max_passes)
    return OpenRequest(
        cameras=_check_cameras(message.cameras, limits),
        proprio_names=_check_proprio_names(message.proprio_names, limits),
        instruction=check_text(message.instruction, "open.instruction", limits),
        control_period_ns=_check_period(message.control_period_ms, limits) * 1_000_000,
        max_action_age_ns=_check_age(message.max_action_age_ms),
        mode=mode,
        unnorm_key=_check_name(message.unnorm_key, "open.unnorm_key") if message.unnorm_key else "",
        depth=message.depth,
        tolerance_bins=message.tolerance_bins,
        max_passes=message.max_passes,
    )


def check_request(opened: OpenRequest, limits: LimitsConfig) -> None:
    """Validate an Open that another process has checked, by the same limits."""
    _check_camera_names([camera.name for camera in opened.cameras], limits)
    for index, camera in enumerate(opened.cameras):
        _check_size(camera, f"open.cameras[{index}]", limits)
    _check_proprio_names(opened.proprio_names, limits)
    check_text(opened.instruction, "open.instruction", limits)
    _check_depth(opened.mode, opened.depth)
    _check_speculation(opened.mode, opened.tolerance_bins, opened.max_passes)
    _check_period(opened.control_period_ns // 1_000_000, limits)
    if opened.max_action_age_ns is not None:
        _check_age(opened.max_action_age_ns // 1_000_000)
    if opened.unnorm_key:
        _check_name(opened.unnorm_key, "open.unnorm_key")


def check_frame(message: pb.Frame, opened: OpenRequest, limits: LimitsConfig) -> CheckedFrame:
    """Validate everything about a frame that needs neither decoding nor a checksum."""
    _check_text_size(message, limits)
    images = _order_images(message.images, opened.cameras)
    for index, (data, camera) in enumerate(zip(images, opened.cameras, strict=True)):
        field = f"frame.images[{index}].data"
        if len(data) > limits.image_bytes:
            raise InvalidArgument(
                f"has {len(data)} bytes; the limit is {limits.image_bytes}", field=field, reason=Reason.IMAGE_TOO_LARGE
            )
        check_image(data, camera, field)
    _check_proprio(message.proprio, opened.proprio_names)
    instruction = None
    if message.HasField("instruction"):
        instruction = check_text(message.instruction, "frame.instruction", limits)
    checksum = message.crc32c if message.HasField("crc32c") else None
    return CheckedFrame(
        seq=message.seq, stamp_ns=message.stamp_ns, images=images, instruction=instruction, crc32c=checksum
    )


def check_act(request: pb.ActRequest, alias: str, limits: LimitsConfig) -> tuple[OpenRequest, CheckedFrame]:
    """Validate a single action's request; RequestErrors name the field and the limit."""
    refuse_unknown_fields(request, "message")
    request.open.control_period_ms = request.open.control_period_ms or ACT_PERIOD_MS
    request.frame.seq = request.frame.seq or 1
    opened = check_open(request.open, alias, limits)
    return opened, check_frame(request.frame, opened, limits)


def decode_frame(frame: CheckedFrame, camera: CameraSpec) -> Payload:
    """Verify the checksum and decode the policy's camera, the first, to height*width*3 RGB bytes. Slow, thread-safe."""
    if frame.crc32c is not None and crc32c(frame.images) != frame.crc32c:
        raise DataLoss("does not match the images", field="frame.crc32c", reason=Reason.CRC_MISMATCH)
    if camera.format is ImageFormat.RGB8:
        return frame.images[0]
    return decode_jpeg(frame.images[0], camera, "frame.images[0].data").reshape(-1).data


def check_text(text: str, field: str, limits: LimitsConfig) -> str:
    """Validate an instruction: not empty, bounded, printable."""
    limit = limits.text_bytes
    if len(text) > limit or len(text.encode("utf-8", "surrogatepass")) > limit:
        raise _text_too_long(field, limits)
    if not text.strip():
        raise InvalidArgument("is empty", field=field, reason=Reason.TEXT_EMPTY)
    if any(unicodedata.category(character) in _REFUSED_CATEGORIES for character in text):
        raise InvalidArgument(
            "contains control or unassigned characters", field=field, reason=Reason.TEXT_BAD_CHARACTER
        )
    return text


def refuse_unknown_fields(message: Message, field: str) -> None:
    """Refuse unknown fields, also in nested messages: a field ignored here may matter to the robot.

    Unknown fields are discarded and sizes compared, because listing a message full of them would take a second.
    """
    for name in _message_fields(message.DESCRIPTOR):
        path, value = f"{field}.{name}", getattr(message, name)
        if isinstance(value, Message):
            value = [value] if message.HasField(name) else []
        if len(value) > MAX_PARTS:
            raise InvalidArgument(
                f"has {len(value)} entries; the limit is {MAX_PARTS}", field=path, reason=Reason.PARTS
            )
        for part in value:
            refuse_unknown_fields(part, path)
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise InvalidArgument("contains fields unknown to this version", field=field, reason=Reason.UNKNOWN_FIELD)


@cache
def _message_fields(kind: Descriptor) -> tuple[str, ...]:
    """The names of the fields that hold messages; reading the others would copy pixels and texts."""
    return tuple(field.name for field in kind.fields if field.message_type is not None)


def _check_text_size(message: pb.Frame, limits: LimitsConfig) -> None:
    """Bound the instruction's size without decoding it, which takes a millisecond when it is long."""
    rest = message.ByteSize() - sum(image.ByteSize() for image in message.images) - 4 * len(message.proprio)
    if rest > limits.text_bytes + SMALL_FIELDS_BYTES:
        raise _text_too_long("frame.instruction", limits)


def _text_too_long(field: str, limits: LimitsConfig) -> InvalidArgument:
    return InvalidArgument(
        f"exceeds the limit of {limits.text_bytes} bytes of UTF-8", field=field, reason=Reason.TEXT_TOO_LONG
    )


def _check_cameras(messages: Sequence[pb.Camera], limits: LimitsConfig) -> tuple[CameraSpec, ...]:
    _check_camera_names([message.name for message in messages], limits)
    return tuple(_check_camera(message, f"open.cameras[{i}]", limits) for i, message in enumerate(messages))


def _check_camera_names(names: Sequence[str], limits: LimitsConfig) -> None:
    if not 1 <= len(names) <= limits.cameras:
        text = f"has {len(names)} cameras; a session takes 1 to {limits.cameras}"
        raise InvalidArgument(text, field="open.cameras", reason=Reason.CAMERA_COUNT)
    for index, name in enumerate(names):
        _check_name(name, f"open.cameras[{index}].name")
    if len(set(names)) != len(names):
        raise InvalidArgument(
            "two cameras have the same name; names must differ", field="open.cameras", reason=Reason.CAMERA_NAME
        )


def _check_camera(message: pb.Camera, field: str, limits: LimitsConfig) -> CameraSpec:
    if message.format not in _FORMATS:
        raise InvalidArgument("unknown format; use JPEG or RGB8", field=f"{field}.format", reason=Reason.CAMERA_FORMAT)
    camera = CameraSpec(message.name, message.width, message.height, _FORMATS[message.format])
    _check_size(camera, field, limits)
    return camera


def _check_size(camera: CameraSpec, field: str, limits: LimitsConfig) -> None:
    pixels, size, text = camera.width * camera.height, f"{camera.width}x{camera.height}", ""
    if min(camera.width, camera.height) < 1 or pixels > limits.image_pixels:
        text = f"{size} is outside the limits of 1 to {limits.image_pixels} pixels"
    elif max(camera.width, camera.height) > limits.image_side:
        text = f"{size} has a side longer than {limits.image_side} pixels"
    elif camera.format is ImageFormat.RGB8 and pixels * 3 > limits.image_bytes:
        text = f"{size} RGB is {pixels * 3} bytes; the limit is {limits.image_bytes}: send JPEG"
    if text:
        raise InvalidArgument(text, field=field, reason=Reason.CAMERA_SIZE)


def _check_name(name: str, field: str) -> str:
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidArgument(f"must have 1 to {MAX_NAME} printable characters", field=field, reason=Reason.BAD_NAME)
    return name


def _check_proprio_names(names: Sequence[str], limits: LimitsConfig) -> tuple[str, ...]:
    if len(names) > limits.proprio:
        raise InvalidArgument(
            f"has {len(names)} names; the limit is {limits.proprio}",
            field="open.proprio_names",
            reason=Reason.PROPRIO_COUNT,
        )
    return tuple(_check_name(name, f"open.proprio_names[{index}]") for index, name in enumerate(names))


def _check_period(period_ms: int, limits: LimitsConfig) -> int:
    shortest_ms = math.floor(1000 / limits.rate_hz)
    if not shortest_ms <= period_ms <= MAX_PERIOD_MS:
        raise InvalidArgument(
            f"must be {shortest_ms} to {MAX_PERIOD_MS} ms, got {period_ms}",
            field="open.control_period_ms",
            reason=Reason.PERIOD_OUT_OF_RANGE,
        )
    return period_ms


def _check_depth(mode: Mode | None, depth: int) -> None:
    if depth and mode is not Mode.DEPTH:
        raise InvalidArgument("may only be set with mode depth", field="open.depth", reason=Reason.DEPTH_WITHOUT_MODE)


def _check_speculation(mode: Mode | None, tolerance_bins: int, max_passes: int) -> None:
    """Check what the model does not decide; that max_passes is at most K is checked at admission."""
    for name, value in (("tolerance_bins", tolerance_bins), ("max_passes", max_passes)):
        if value and mode is not Mode.SPECULATIVE:
            raise InvalidArgument(
                "may only be set with mode speculative", field=f"open.{name}", reason=Reason.SPECULATION_WITHOUT_MODE
            )
    if not 0 <= tolerance_bins <= MOST_TOLERANCE_BINS:
        raise InvalidArgument(
            f"must be 0 to {MOST_TOLERANCE_BINS}, got {tolerance_bins}",
            field="open.tolerance_bins",
            reason=Reason.TOLERANCE_OUT_OF_RANGE,
        )
    if max_passes < 0:
        raise InvalidArgument(f"must be 0 to K, got {max_passes}", field="open.max_passes")


def _check_age(age_ms: int) -> int | None:
    if not 0 <= age_ms <= MAX_AGE_MS:
        raise InvalidArgument(
            f"must be at most {MAX_AGE_MS} ms, got {age_ms}",
            field="open.max_action_age_ms",
            reason=Reason.AGE_OUT_OF_RANGE,
        )
    return age_ms * 1_000_000 if age_ms else None


def _order_images(messages: Sequence[pb.Image], cameras: tuple[CameraSpec, ...]) -> tuple[bytes, ...]:
    """The images in the order of the cameras, whether given by name or by position."""
    if len(messages) != len(cameras):
        raise InvalidArgument(
            f"has {len(messages)} images; the session was opened with {len(cameras)} cameras",
            field="frame.images",
            reason=Reason.CAMERA_MISSING if len(messages) < len(cameras) else Reason.CAMERA_EXTRA,
        )
    if not any(message.camera for message in messages):
        return tuple(message.data for message in messages)
    by_name = {message.camera: message.data for message in messages}
    missing = [camera.name for camera in cameras if camera.name not in by_name]
    if missing:
        raise InvalidArgument(
            f"lacks an image from camera {missing[0]!r}", field="frame.images", reason=Reason.CAMERA_MISSING
        )
    return tuple(by_name[camera.name] for camera in cameras)


def _check_proprio(values: Sequence[float], names: tuple[str, ...]) -> None:
    if len(values) != len(names):
        raise InvalidArgument(
            f"has {len(values)} values; the session was opened with {len(names)} names",
            field="frame.proprio",
            reason=Reason.PROPRIO_COUNT,
        )
    for index, value in enumerate(values):
        if not abs(value) <= MAX_PROPRIO:  # also refuses NaN
            raise InvalidArgument(
                f"must be finite and at most {MAX_PROPRIO:g} in magnitude",
                field=f"frame.proprio[{index}]",
                reason=Reason.PROPRIO_NOT_FINITE if not math.isfinite(value) else Reason.PROPRIO_OUT_OF_RANGE,
            )
