"""Conversion between protocol messages and the SDK's types, and of call statuses to typed errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeflow_client.connection.bounds import MAX_DECLARED_AGE_MS, check_schema, check_validity, forecast_s
from edgeflow_client.errors import REQUEST_ERRORS, EdgeflowError, FailedPrecondition, InvalidArgument
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.trajectory import Candidate, ChunkReport, Limited, LimitKind
from edgeflow_client.types import (
    ActionSchema,
    CameraSpec,
    Command,
    Disposition,
    Execution,
    ImageFormat,
    Mode,
    StageTimings,
    StateSpec,
)

COMMANDS = {pb.COMMAND_ACT: Command.ACT, pb.COMMAND_HOLD: Command.HOLD, pb.COMMAND_STOP: Command.STOP}
DISPOSITIONS = {
    pb.DISPOSITION_ACTED: Disposition.ACTED,
    pb.DISPOSITION_SUPERSEDED: Disposition.SUPERSEDED,
    pb.DISPOSITION_REJECTED: Disposition.REJECTED,
    pb.DISPOSITION_DROPPED: Disposition.DROPPED,
}
LIMITS = {each.value: each for each in LimitKind}
_FORMATS = {ImageFormat.JPEG: pb.IMAGE_FORMAT_JPEG, ImageFormat.RGB8: pb.IMAGE_FORMAT_RGB8}
MODES = {
    pb.MODE_SERIAL: Mode.SERIAL,
    pb.MODE_PIPELINED: Mode.PIPELINED,
    pb.MODE_DEPTH: Mode.DEPTH,
    pb.MODE_SPECULATIVE: Mode.SPECULATIVE,
    pb.MODE_AUTO: Mode.AUTO,
}
EXECUTIONS = {
    pb.EXECUTION_AUTO: Execution.AUTO,
    pb.EXECUTION_CONTINUE: Execution.CONTINUE,
    pb.EXECUTION_FRESH: Execution.FRESH,
    pb.EXECUTION_REST: Execution.REST,
    pb.EXECUTION_SLOW: Execution.SLOW,
}
EXECUTION_NUMBERS: dict[Execution | None, pb.Execution] = {
    None: pb.EXECUTION_UNSPECIFIED,
    **{execution: number for number, execution in EXECUTIONS.items()},
}
SLOWEST_RATE = 0.1
RECEIPTS = ("edgeflow-receipts", "1")
"""Metadata of a stream whose client wants receipts; a service without them ignores it."""
UNKNOWN_AGE_S = 0.5  # assumed latency if the service sends no forecast
Choice = TypeVar("Choice", Mode, Execution)
_UINT32 = (1 << 32) - 1
_PAIR = 2
_WAIT_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """The settings of a session; mode None = the service's default."""

    cameras: tuple[CameraSpec, ...]
    control_period_s: float
    mode: Mode | None = None
    max_action_age_s: float | None = None
    """None = each action's own limit, math.inf = no limit in the robot. With both, the service keeps its own limit."""
    model: str = ""
    unnorm_key: str = ""
    depth: int = 0
    """Pipeline depth, only with Mode.DEPTH."""
    tolerance_bins: int = 0
    """Bins by which a verified token may differ from its draft, only with Mode.SPECULATIVE."""
    max_passes: int = 0
    """The most passes of a frame, only with Mode.SPECULATIVE."""
    state: tuple[StateSpec, ...] = ()
    """The vectors of every frame."""
    chunks: bool = True
    """The client executes chunks of several actions; otherwise it gets the one row that is due."""
    execution: Execution = Execution.AUTO
    """How answers are executed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The service's answer to Open."""

    session: int
    """Number of the session, as in the service's log."""
    epoch: int
    """Number of the episode; `reset` increases it."""
    schema: ActionSchema
    """The meaning of an action's numbers."""
    action_tokens: int
    """K, the tokens of an action."""
    mode: Mode
    """The mode in effect."""
    model: str
    """Name of the policy."""
    valid_for_s: float
    """Time for which an action may be executed."""
    depth: int = 0
    """Pipeline depth; 0 if frames draft their tokens."""
    predicted_fps: float = 0.0
    """Actions per second at the declared control period; 0 = unknown."""
    predicted_age_s: float = 0.0
    """Mean latency at the declared control period; 0 = unknown."""
    tolerance_bins: int = 0
    """Bins by which a verified token may differ from its draft, as served."""
    max_passes: int = 0
    """The most passes of a frame, as served; 0 if frames do not draft their tokens."""
    execution: Execution | None = None
    """How the first answers are executed; None = the service does not say."""
    unheard_m: float = 0.0
    """The most that the tool may move within `valid_for_s` at the limits of the schema, in metres; 0 = unknown."""
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Width and height to which the images of cameras with `resize` are shrunk, by name."""


def open_message(settings: SessionSettings, instruction: str) -> pb.Open:
    """The first message of a stream; InvalidArgument for settings that it cannot carry."""
    try:
        return _open_message(settings, instruction)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"cannot be sent: {error}", field="open") from None


def check_sizes(settings: SessionSettings, opened: Opened) -> None:
    """Raise FailedPrecondition unless images of cameras with `resize` are only shrunk."""
    for camera in settings.cameras:
        width, height = opened.sizes.get(camera.name, (0, 0))
        if camera.resize and not (0 < width <= camera.width and 0 < height <= camera.height):
            raise FailedPrecondition(
                f"cannot shrink images of {camera.name!r} from {camera.width}x{camera.height} to {width}x{height}",
                field="opened.cameras",
            )


def check_text(instruction: object) -> None:
    """Raise InvalidArgument for an instruction that no message can carry."""
    if not isinstance(instruction, str) or any("\ud800" <= character <= "\udfff" for character in instruction):
        raise InvalidArgument(f"must be text, got {instruction!r}", field="instruction")


def opened_of(message: pb.Opened) -> Opened:
    """Convert the service's answer; FailedPrecondition if this SDK does not know its values or cannot keep them."""
    check_validity(message.valid_for_ms)
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
            control_rate_hz=message.schema.control_rate_hz,
            horizon=message.schema.horizon or 1,
            step_ms=message.schema.step_ms if message.schema.horizon > 1 else 0.0,
            whole_way=message.schema.whole_way,
        )
        mode = MODES[message.mode]
    except (ValueError, KeyError) as error:
        raise FailedPrecondition(f"cannot interpret the service's answer: {error}", field="opened") from None
    check_schema(schema)
    return Opened(
        session=message.session,
        epoch=message.epoch,
        schema=schema,
        action_tokens=message.action_tokens,
        mode=mode,
        model=message.model,
        valid_for_s=message.valid_for_ms / 1000,
        depth=message.depth,
        predicted_fps=max(message.predicted_fps, 0.0) if math.isfinite(message.predicted_fps) else 0.0,
        predicted_age_s=forecast_s(message.predicted_age_ms),
        tolerance_bins=message.tolerance_bins,
        max_passes=message.max_passes,
        execution=EXECUTIONS.get(message.execution),
        unheard_m=max(message.unheard_m, 0.0) if math.isfinite(message.unheard_m) else 0.0,
        sizes={camera.name: (camera.width, camera.height) for camera in message.cameras},
    )


def schema_message(schema: ActionSchema) -> pb.ActionSchema:
    """The message of an action schema."""
    columns = zip(schema.names, schema.units, schema.low, schema.high, schema.relative, strict=True)
    return pb.ActionSchema(
        dimensions=[
            pb.ActionDimension(name=name, unit=unit, low=low, high=high, relative=relative)
            for name, unit, low, high, relative in columns
        ],
        frame=schema.frame,
        rotation=schema.rotation,
        control_rate_hz=schema.control_rate_hz,
        horizon=schema.horizon,
        step_ms=schema.step_ms,
        whole_way=schema.whole_way,
    )


def rows_of(message: pb.Action, schema: ActionSchema) -> NDArray[np.float64] | None:
    """The actions [horizon, dims]; None unless they are finite numbers with the schema's horizon and step."""
    horizon, dims = message.horizon or 1, len(schema.names)
    if horizon != schema.horizon or len(message.values) != horizon * dims:
        return None
    if horizon > 1 and message.step_ms != schema.step_ms:
        return None
    rows = np.array(message.values, dtype=np.float64).reshape(horizon, dims)
    return rows if np.isfinite(rows).all() else None


def age_limit_ns(limit_s: float | None, sent_ms: int, opened: Opened) -> int | None:
    """The age beyond which an action is not executed; None = no limit.

    limit_s: the robot's own, math.inf = none, None = the action's. sent_ms: what the action carries, of which at most
    MAX_DECLARED_AGE_MS count; 0, from an older service, stands for its validity plus the age forecast for the session.
    """
    if limit_s is not None:
        return None if math.isinf(limit_s) else round(limit_s * 1e9)
    if sent_ms > 0:
        return min(sent_ms, MAX_DECLARED_AGE_MS) * 1_000_000
    return round((opened.valid_for_s + (opened.predicted_age_s or UNKNOWN_AGE_S)) * 1e9)


def rate_of(message: pb.Action) -> float:
    """The share of the chunk's rate at which an action is executed, SLOWEST_RATE to 1; 1 where it is not stated."""
    rate = message.rate or 1.0
    return min(max(rate, SLOWEST_RATE), 1.0) if math.isfinite(rate) else 1.0


def timings_of(message: pb.Timings) -> StageTimings:
    return StageTimings(message.decode_ns, message.queue_ns, message.inference_ns, message.passes)


def report_of(message: pb.Action, first_seq: int) -> ChunkReport:
    """How a chunk was made. first_seq: offset of the stream's numbers. Limits unknown to this SDK are left out."""
    return ChunkReport(
        continues=message.continues + first_seq if message.continues else 0,
        conditioned_steps=message.conditioned_steps,
        limited=tuple(
            Limited(dimension=each.dimension, limit=LIMITS[each.limit], beyond=each.beyond, changed=each.changed)
            for each in message.limited
            if each.limit in LIMITS
        ),
        candidates=tuple(
            Candidate(score=each.score, distance=each.distance, roughness=each.roughness, beyond=each.beyond)
            for each in message.candidates
        ),
        chosen=message.chosen,
    )


def error_of(error: Any) -> EdgeflowError:
    """The typed error of a failed call (grpc.RpcError), for any status and trailers.

    A plain EdgeflowError for statuses without a class.
    """
    code = str(getattr(error.code(), "name", "UNKNOWN"))
    text = str(error.details() or code)
    trailers = _trailers(error.trailing_metadata())
    kind = REQUEST_ERRORS.get(code)
    if kind is None:
        return EdgeflowError(f"{code}: {text}")
    result = kind(
        text,
        reason=trailers.get("edgeflow-reason", ""),
        retry_after_ms=_milliseconds(trailers.get("retry-after-ms", "")),
    )
    result.field = trailers.get("edgeflow-field", "")
    return result


def _trailers(metadata: Any) -> Mapping[str, str]:
    """The trailers that are text, by key; anything else is left out."""
    pairs = metadata if isinstance(metadata, Iterable) else ()
    found = (tuple(pair) for pair in pairs if isinstance(pair, tuple) and len(pair) == _PAIR)
    return {key: value for key, value in found if isinstance(key, str) and isinstance(value, str)}


def _milliseconds(text: str) -> int | None:
    """A wait in milliseconds, or None if the text is not an integer."""
    plain = text.isascii() and text.isdigit() and len(text) <= _WAIT_DIGITS
    return int(text) if plain else None


def _open_message(settings: SessionSettings, instruction: str) -> pb.Open:
    _check_cameras(settings)
    _check_state(settings)
    modes = {mode: number for number, mode in MODES.items()}
    return pb.Open(
        model=settings.model,
        cameras=[
            pb.Camera(
                name=camera.name,
                width=camera.width,
                height=camera.height,
                format=_FORMATS[camera.format],
                resize=camera.resize,
            )
            for camera in settings.cameras
        ],
        instruction=instruction,
        control_period_ms=_period_ms(settings.control_period_s),
        max_action_age_ms=_age_ms(settings.max_action_age_s),
        mode=modes[_member(Mode, settings.mode, "mode")] if settings.mode is not None else pb.MODE_UNSPECIFIED,
        unnorm_key=settings.unnorm_key,
        depth=settings.depth,
        tolerance_bins=settings.tolerance_bins,
        max_passes=settings.max_passes,
        state=[
            pb.StateVector(name=each.name, size=each.size, elements=each.elements, units=each.units)
            for each in settings.state
        ],
        chunks=settings.chunks,
        execution=EXECUTION_NUMBERS[_member(Execution, settings.execution, "execution") if settings.chunks else None],
    )


def _member(kind: type[Choice], given: object, field: str) -> Choice:
    """A mode or an execution, also from its name."""
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise InvalidArgument(f"must be one of {known}, got {given!r}", field=field) from None


def _check_cameras(settings: SessionSettings) -> None:
    for index, camera in enumerate(settings.cameras):
        if not isinstance(camera, CameraSpec) or camera.format not in _FORMATS:
            raise InvalidArgument(
                f"must be a CameraSpec(name, width, height, ImageFormat.RGB8 or JPEG), got {camera!r:.80}",
                field=f"cameras[{index}]",
            )


def _check_state(settings: SessionSettings) -> None:
    for index, each in enumerate(settings.state):
        if not isinstance(each, StateSpec):
            raise InvalidArgument(f"must be a StateSpec(name=..., size=...), got {each!r:.80}", field=f"state[{index}]")
    names = [each.name for each in settings.state]
    if len(set(names)) < len(names):
        raise ValueError(f"state names a vector twice: {names}")
    for each in settings.state:
        if each.size < 1:
            raise ValueError(f"state {each.name!r} has a size of {each.size}; it must be 1 or more")


def _period_ms(period_s: float) -> int:
    if not 0.0 < period_s < _UINT32 / 1000:
        raise ValueError(f"control_period_s must be a positive number of seconds, got {period_s!r}")
    return round(period_s * 1000)


def _age_ms(limit_s: float | None) -> int:
    """The limit for the service, 0 = its own; one that rounds to 0 is sent as 1 ms."""
    if limit_s is None or limit_s == math.inf:
        return 0
    if not limit_s > 0.0:
        raise ValueError(f"max_action_age_s must be above 0, got {limit_s!r}")
    return min(max(round(limit_s * 1000), 1), _UINT32)
