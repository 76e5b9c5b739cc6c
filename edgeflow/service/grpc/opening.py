"""Validation of Open: everything that needs neither the policy nor the state of the service."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgeflow.config.sections import LimitsConfig
from edgeflow.contract import CHANNELS
from edgeflow.service.grpc.fields import check_name, check_text
from edgeflow.service.grpc.state import check_state, check_vectors
from edgeflow.service.observation.requests import OpenRequest
from edgeflow_client.errors import InvalidArgument, NotFound
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import MOST_TOLERANCE_BINS, CameraSpec, ImageFormat, Mode

MAX_PERIOD_MS = 10_000
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
