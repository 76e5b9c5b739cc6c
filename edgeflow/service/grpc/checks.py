"""Checks of texts, names, state and Open: everything that needs neither the policy nor the state of the service."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from functools import cache

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from edgeflow.config.sections import LimitsConfig
from edgeflow.contract import CHANNELS
from edgeflow.service.observation.requests import OpenRequest
from edgeflow_client.connection.wire import MODES
from edgeflow_client.errors import InvalidArgument, NotFound
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import MOST_TOLERANCE_BINS, CameraSpec, ImageFormat, Mode, StateSpec

MAX_NAME = 64
MAX_PARTS = 64  # messages in a repeated field
_REFUSED_CATEGORIES = {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"}
MAX_NUMBER = 1e6  # a larger value means a broken sensor, whatever its unit
FIELD, NAMES_FIELD = "open.state", "open.proprio_names"
MAX_PERIOD_MS = 10_000
MAX_AGE_MS = 60_000
_FORMATS = {pb.IMAGE_FORMAT_JPEG: ImageFormat.JPEG, pb.IMAGE_FORMAT_RGB8: ImageFormat.RGB8}
_MODES = {pb.MODE_UNSPECIFIED: None, **MODES}


def check_text(text: str, field: str, limits: LimitsConfig) -> str:
    """Validate an instruction: not empty, bounded, printable."""
    limit = limits.text_bytes
    if len(text) > limit or len(text.encode("utf-8", "surrogatepass")) > limit:
        raise text_too_long(field, limits)
    if not text.strip():
        raise InvalidArgument("is empty", field=field, reason=Reason.TEXT_EMPTY)
    if any(unicodedata.category(character) in _REFUSED_CATEGORIES for character in text):
        raise InvalidArgument(
            "contains control or unassigned characters", field=field, reason=Reason.TEXT_BAD_CHARACTER
        )
    return text


def check_name(name: str, field: str) -> str:
    """Validate a name: not empty, bounded, printable."""
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidArgument(f"must have 1 to {MAX_NAME} printable characters", field=field, reason=Reason.BAD_NAME)
    return name


def text_too_long(field: str, limits: LimitsConfig) -> InvalidArgument:
    """The refusal of a text that exceeds the limit."""
    return InvalidArgument(
        f"exceeds the limit of {limits.text_bytes} bytes of UTF-8", field=field, reason=Reason.TEXT_TOO_LONG
    )


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


def check_state(message: pb.Open, limits: LimitsConfig) -> tuple[StateSpec, ...]:
    """The state vectors of an Open; each of its proprio_names, which older clients send, is a vector of one number."""
    if message.state and message.proprio_names:
        raise InvalidArgument("replaces proprio_names: set one of them", field=FIELD, reason=Reason.STATE_TWICE)
    if not message.state:
        return _scalars(message.proprio_names, limits)
    _check_numbers([vector.size for vector in message.state], limits)
    vectors = tuple(_vector(vector, f"{FIELD}[{index}]") for index, vector in enumerate(message.state))
    check_vectors(vectors, limits)
    return vectors


def check_vectors(vectors: Sequence[StateSpec], limits: LimitsConfig) -> None:
    """Validate vectors: bounded sizes, names that differ, bounded texts."""
    _check_numbers([vector.size for vector in vectors], limits)
    for index, vector in enumerate(vectors):
        check_name(vector.name, f"{FIELD}[{index}].name")
        for kind, texts in (("elements", vector.elements), ("units", vector.units)):
            for place, text in enumerate(texts):
                if text:  # else not stated
                    check_name(text, f"{FIELD}[{index}].{kind}[{place}]")
    if len({vector.name for vector in vectors}) != len(vectors):
        text = "two vectors have the same name; names must differ"
        raise InvalidArgument(text, field=FIELD, reason=Reason.STATE_NAME)


def check_numbers(values: Sequence[float], expected: int) -> tuple[float, ...]:
    """The state of a frame: as many numbers as its session was opened with, all plausible."""
    if len(values) != expected:
        raise InvalidArgument(
            f"has {len(values)} values; the session was opened with {expected} numbers",
            field="frame.proprio",
            reason=Reason.PROPRIO_COUNT,
        )
    for index, value in enumerate(values):
        if not abs(value) <= MAX_NUMBER:  # also refuses NaN
            raise InvalidArgument(
                f"must be finite and at most {MAX_NUMBER:g} in magnitude",
                field=f"frame.proprio[{index}]",
                reason=Reason.PROPRIO_NOT_FINITE if not math.isfinite(value) else Reason.PROPRIO_OUT_OF_RANGE,
            )
    return tuple(values)


def _scalars(names: Sequence[str], limits: LimitsConfig) -> tuple[StateSpec, ...]:
    if len(names) > limits.proprio:
        text = f"has {len(names)} names; the limit is {limits.proprio}"
        raise InvalidArgument(text, field=NAMES_FIELD, reason=Reason.PROPRIO_COUNT)
    checked = [check_name(name, f"{NAMES_FIELD}[{index}]") for index, name in enumerate(names)]
    return tuple(StateSpec(name=name, size=1) for name in checked)


def _vector(message: pb.StateVector, field: str) -> StateSpec:
    for kind in ("elements", "units"):
        count = len(getattr(message, kind))
        if count not in (0, message.size):
            text = f"has {count} entries; a vector of {message.size} numbers has one per number, or none"
            raise InvalidArgument(text, field=f"{field}.{kind}", reason=Reason.STATE_COUNT)
    return StateSpec(name=message.name, size=message.size, elements=tuple(message.elements), units=tuple(message.units))


def _check_numbers(sizes: Sequence[int], limits: LimitsConfig) -> None:
    for index, size in enumerate(sizes):
        if size < 1:
            text = f"is {size}; a vector has at least one number"
            raise InvalidArgument(text, field=f"{FIELD}[{index}].size", reason=Reason.STATE_COUNT)
    if sum(sizes) > limits.proprio:
        text = f"has {sum(sizes)} numbers; the limit is {limits.proprio}"
        raise InvalidArgument(text, field=FIELD, reason=Reason.STATE_COUNT)


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
        instruction=check_text(message.instruction, "open.instruction", limits),
        control_period_ns=_check_period(message.control_period_ms, limits) * 1_000_000,
        max_action_age_ns=_check_age(message.max_action_age_ms),
        mode=mode,
        unnorm_key=check_name(message.unnorm_key, "open.unnorm_key") if message.unnorm_key else "",
        state=check_state(message, limits),
        chunks=message.chunks,
        rtc=_check_rtc(message.rtc, message.chunks),
        depth=message.depth,
        tolerance_bins=message.tolerance_bins,
        max_passes=message.max_passes,
    )


def check_request(opened: OpenRequest, limits: LimitsConfig) -> None:
    """Validate an Open that another process has checked, by the same limits."""
    if opened.policy_numbers:
        raise InvalidArgument("is matched by the process that plans the session", field="open")
    _check_camera_names([camera.name for camera in opened.cameras], limits)
    for index, camera in enumerate(opened.cameras):
        _check_size(camera, f"open.cameras[{index}]", limits)
    check_vectors(opened.state, limits)
    check_text(opened.instruction, "open.instruction", limits)
    _check_depth(opened.mode, opened.depth)
    _check_speculation(opened.mode, opened.tolerance_bins, opened.max_passes)
    _check_period(opened.control_period_ns // 1_000_000, limits)
    if opened.max_action_age_ns is not None:
        _check_age(opened.max_action_age_ns // 1_000_000)
    _check_rtc(opened.rtc, opened.chunks)
    if opened.unnorm_key:
        check_name(opened.unnorm_key, "open.unnorm_key")


def _check_cameras(messages: Sequence[pb.Camera], limits: LimitsConfig) -> tuple[CameraSpec, ...]:
    _check_camera_names([message.name for message in messages], limits)
    return tuple(_check_camera(message, f"open.cameras[{i}]", limits) for i, message in enumerate(messages))


def _check_camera_names(names: Sequence[str], limits: LimitsConfig) -> None:
    if not 1 <= len(names) <= limits.cameras:
        text = f"has {len(names)} cameras; a session takes 1 to {limits.cameras}"
        raise InvalidArgument(text, field="open.cameras", reason=Reason.CAMERA_COUNT)
    for index, name in enumerate(names):
        check_name(name, f"open.cameras[{index}].name")
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
    elif camera.format is ImageFormat.RGB8 and pixels * CHANNELS > limits.image_bytes:
        text = f"{size} RGB is {pixels * CHANNELS} bytes; the limit is {limits.image_bytes}: send JPEG"
    if text:
        raise InvalidArgument(text, field=field, reason=Reason.CAMERA_SIZE)


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


def _check_rtc(rtc: bool, chunks: bool) -> bool:
    if rtc and not chunks:
        raise InvalidArgument(
            "may only be set by clients that play chunks: set open.chunks",
            field="open.rtc",
            reason=Reason.RTC_WITHOUT_CHUNKS,
        )
    return rtc


def _check_age(age_ms: int) -> int | None:
    if not 0 <= age_ms <= MAX_AGE_MS:
        raise InvalidArgument(
            f"must be at most {MAX_AGE_MS} ms, got {age_ms}",
            field="open.max_action_age_ms",
            reason=Reason.AGE_OUT_OF_RANGE,
        )
    return age_ms * 1_000_000 if age_ms else None
