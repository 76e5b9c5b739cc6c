"""Checks of the message Open: the general ones (observation/checks.py), and those of protobuf."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from edgeflow.config.sections import LimitsConfig
from edgeflow.service.observation.checks import (
    FIELD,
    check_age,
    check_camera_names,
    check_camera_size,
    check_counts,
    check_depth,
    check_execution,
    check_name,
    check_period,
    check_speculation,
    check_text,
    check_vectors,
)
from edgeflow.service.observation.requests import OpenRequest
from edgeflow.version import __version__
from edgeflow_client.connection.unknown import FIRST_IGNORABLE, unknown_fields
from edgeflow_client.connection.wire import EXECUTIONS, MODES
from edgeflow_client.errors import InvalidArgument, NotFound
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import CameraSpec, ImageFormat, StateSpec

MAX_PARTS = 64  # messages in a repeated field
UNKNOWN_BYTES = 1024  # in unknown fields of a message
NAMES_FIELD = "open.proprio_names"
_FORMATS = {pb.IMAGE_FORMAT_JPEG: ImageFormat.JPEG, pb.IMAGE_FORMAT_RGB8: ImageFormat.RGB8}
_MODES = {pb.MODE_UNSPECIFIED: None, **MODES}
_EXECUTIONS = {pb.EXECUTION_UNSPECIFIED: None, **EXECUTIONS}


def ignored_fields(message: Message, source: bytes) -> tuple[str, ...]:
    """The unknown fields of a message, also in nested ones, that may be ignored; they are discarded.

    Other unknown fields are rejected: ignored here, they may matter to the robot. source: the bytes of the message,
    parsed again only if unknown fields were found, and those are small: listing millions would take a second.
    """
    _check_parts(message, "message")
    size = message.ByteSize()
    message.DiscardUnknownFields()
    unknown_bytes = size - message.ByteSize()
    if not unknown_bytes:
        return ()
    if unknown_bytes > UNKNOWN_BYTES:
        text = f"has {unknown_bytes} bytes in fields unknown to this service; the limit is {UNKNOWN_BYTES}"
        raise InvalidArgument(text, field="message", reason=Reason.UNKNOWN_FIELD)
    found = unknown_fields(type(message).FromString(source), "message")
    for each in found:
        if each.number < FIRST_IGNORABLE:
            raise InvalidArgument(
                f"has field {each.number}, unknown to this service (version {__version__}), which may not be ignored: "
                "use the service's version of the SDK, or leave out what sets the field",
                field=each.message,
                reason=Reason.UNKNOWN_FIELD,
            )
    return tuple(dict.fromkeys(map(str, found)))


def _check_parts(message: Message, field: str) -> None:
    """Reject messages of too many parts."""
    for name in _message_fields(message.DESCRIPTOR):
        path, value = f"{field}.{name}", getattr(message, name)
        if isinstance(value, Message):
            value = [value] if message.HasField(name) else []
        if len(value) > MAX_PARTS:
            raise InvalidArgument(
                f"has {len(value)} entries; the limit is {MAX_PARTS}", field=path, reason=Reason.PARTS
            )
        for part in value:
            _check_parts(part, path)


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
    check_counts([vector.size for vector in message.state], limits)
    vectors = tuple(_vector(vector, f"{FIELD}[{index}]") for index, vector in enumerate(message.state))
    check_vectors(vectors, limits)
    return vectors


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


def check_open(message: pb.Open, alias: str, limits: LimitsConfig, ignored: tuple[str, ...] = ()) -> OpenRequest:
    """Validate an Open; RequestErrors name the field and the limit. ignored: by `ignored_fields`."""
    if message.model not in ("", alias):
        raise NotFound(f"unknown model; this service serves {alias!r}", field="open.model", reason=Reason.MODEL_UNKNOWN)
    if message.mode not in _MODES:
        raise InvalidArgument(
            "unknown mode; use serial, pipelined, depth, speculative or auto",
            field="open.mode",
            reason=Reason.MODE_UNKNOWN,
        )
    if message.execution not in _EXECUTIONS:
        raise InvalidArgument(
            "unknown execution; use auto, continue, fresh, rest or slow",
            field="open.execution",
            reason=Reason.EXECUTION_UNKNOWN,
        )
    mode = _MODES[message.mode]
    check_depth(mode, message.depth)
    check_speculation(mode, message.tolerance_bins, message.max_passes)
    return OpenRequest(
        cameras=_check_cameras(message.cameras, limits),
        instruction=check_text(message.instruction, "open.instruction", limits),
        control_period_ns=check_period(message.control_period_ms, limits) * 1_000_000,
        max_action_age_ns=check_age(message.max_action_age_ms),
        mode=mode,
        unnorm_key=check_name(message.unnorm_key, "open.unnorm_key") if message.unnorm_key else "",
        state=check_state(message, limits),
        chunks=message.chunks,
        execution=check_execution(_EXECUTIONS[message.execution], message.chunks),
        depth=message.depth,
        tolerance_bins=message.tolerance_bins,
        max_passes=message.max_passes,
        ignored=ignored,
    )


def _check_cameras(messages: Sequence[pb.Camera], limits: LimitsConfig) -> tuple[CameraSpec, ...]:
    check_camera_names([message.name for message in messages], limits)
    return tuple(_check_camera(message, f"open.cameras[{i}]", limits) for i, message in enumerate(messages))


def _check_camera(message: pb.Camera, field: str, limits: LimitsConfig) -> CameraSpec:
    if message.format not in _FORMATS:
        raise InvalidArgument("unknown format; use JPEG or RGB8", field=f"{field}.format", reason=Reason.CAMERA_FORMAT)
    camera = CameraSpec(message.name, message.width, message.height, _FORMATS[message.format], resize=message.resize)
    check_camera_size(camera, field, limits)
    return camera
