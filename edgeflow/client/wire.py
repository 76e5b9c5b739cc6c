"""Conversion between protocol messages and the SDK's types, and of call statuses to typed errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgeflow.errors import REQUEST_ERRORS, EdgeflowError, FailedPrecondition
from edgeflow.rpc import control_pb2 as pb
from edgeflow.types import ActionSchema, CameraSpec, Command, Disposition, ImageFormat, Mode, StageTimings

COMMANDS = {pb.COMMAND_ACT: Command.ACT, pb.COMMAND_HOLD: Command.HOLD, pb.COMMAND_STOP: Command.STOP}
DISPOSITIONS = {
    pb.DISPOSITION_ACTED: Disposition.ACTED,
    pb.DISPOSITION_SUPERSEDED: Disposition.SUPERSEDED,
    pb.DISPOSITION_REJECTED: Disposition.REJECTED,
    pb.DISPOSITION_DROPPED: Disposition.DROPPED,
}
_FORMATS = {ImageFormat.JPEG: pb.IMAGE_FORMAT_JPEG, ImageFormat.RGB8: pb.IMAGE_FORMAT_RGB8}
_MODES = {
    pb.MODE_SERIAL: Mode.SERIAL,
    pb.MODE_PIPELINED: Mode.PIPELINED,
    pb.MODE_DEPTH: Mode.DEPTH,
    pb.MODE_AUTO: Mode.AUTO,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Settings to open a session with; mode None = the service's default, max_action_age_s None = no limit.

    depth: pipeline depth, with Mode.DEPTH only.
    """

    cameras: tuple[CameraSpec, ...]
    control_period_s: float
    mode: Mode | None
    max_action_age_s: float | None
    model: str
    proprio_names: tuple[str, ...]
    unnorm_key: str
    depth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The service's answer to Open. action_tokens: K. valid_for_s: how long an action may be executed.

    depth: pipeline depth. predicted_fps, predicted_age_s: at the declared control period; 0 = unknown.
    """

    session: int
    epoch: int
    schema: ActionSchema
    action_tokens: int
    mode: Mode
    model: str
    valid_for_s: float
    depth: int = 0
    predicted_fps: float = 0.0
    predicted_age_s: float = 0.0


def open_message(settings: SessionSettings, instruction: str) -> pb.Open:
    """The first message of a stream."""
    modes = {mode: number for number, mode in _MODES.items()}
    return pb.Open(
        model=settings.model,
        cameras=[
            pb.Camera(name=camera.name, width=camera.width, height=camera.height, format=_FORMATS[camera.format])
            for camera in settings.cameras
        ],
        proprio_names=settings.proprio_names,
        instruction=instruction,
        control_period_ms=round(settings.control_period_s * 1000),
        max_action_age_ms=round((settings.max_action_age_s or 0.0) * 1000),
        mode=modes[settings.mode] if settings.mode else pb.MODE_UNSPECIFIED,
        unnorm_key=settings.unnorm_key,
        depth=settings.depth,
    )


def opened_of(message: pb.Opened) -> Opened:
    """Convert the service's answer; FailedPrecondition if it contains values unknown to this SDK."""
    dimensions = message.schema.dimensions
    try:
        schema = ActionSchema(
            names=tuple(dimension.name for dimension in dimensions),
            units=tuple(dimension.unit for dimension in dimensions),
            low=tuple(dimension.low for dimension in dimensions),
            high=tuple(dimension.high for dimension in dimensions),
            relative=tuple(dimension.relative for dimension in dimensions),
            frame=message.schema.frame,
            rotation=message.schema.rotation,
        )
        mode = _MODES[message.mode]
    except (ValueError, KeyError) as error:
        raise FailedPrecondition(f"cannot interpret the service's answer: {error}", field="opened") from None
    return Opened(
        session=message.session,
        epoch=message.epoch,
        schema=schema,
        action_tokens=message.action_tokens,
        mode=mode,
        model=message.model,
        valid_for_s=message.valid_for_ms / 1000,
        depth=message.depth,
        predicted_fps=message.predicted_fps,
        predicted_age_s=message.predicted_age_ms / 1000,
    )


def timings_of(message: pb.Timings) -> StageTimings:
    return StageTimings(message.decode_ns, message.queue_ns, message.inference_ns, message.passes)


def error_of(error: Any) -> EdgeflowError:
    """The typed error of a failed call (grpc.RpcError); a plain EdgeflowError for statuses without a class."""
    code = error.code().name if error.code() is not None else "UNKNOWN"
    text = error.details() or code
    trailers = dict(error.trailing_metadata() or ())
    kind = REQUEST_ERRORS.get(code)
    if kind is None:
        return EdgeflowError(f"{code}: {text}")
    retry_after_ms = trailers.get("retry-after-ms")
    result = kind(
        text,
        reason=str(trailers.get("edgeflow-reason", "")),
        retry_after_ms=int(retry_after_ms) if retry_after_ms else None,
    )
    result.field = str(trailers.get("edgeflow-field", ""))
    return result
