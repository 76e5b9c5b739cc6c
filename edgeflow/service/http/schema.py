"""The request and response models of the OpenAPI document; tests hold the service to them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from edgeflow.service.http.act import ActBody
from edgeflow.service.http.bodies import JSON_TYPE, MSGPACK_TYPES

_EXAMPLE = {"image": "gICA", "format": "rgb8", "width": 1, "height": 1, "instruction": "grasp the red handle"}


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(_Answer):
    """The cause of an error. code: a gRPC status name. field, param: the part of the request at fault, if any."""

    message: str
    type: str
    param: str | None
    code: str
    field: str


class ErrorAnswer(_Answer):
    """Every error has this form."""

    error: ErrorDetail


class StateAnswer(_Answer):
    """The state of the service."""

    state: str


class SchemaAnswer(_Answer):
    """The meaning of an action's numbers, one entry per number. low, high: null without a limit.

    control_rate_hz: relative numbers stand for one control step at this rate; 0 = not stated. whole_way: they are the
    whole way to their target instead. horizon, step_ms: actions per chunk, and the time between them.
    """

    names: list[str]
    units: list[str]
    low: list[float | None]
    high: list[float | None]
    relative: list[bool]
    frame: str
    rotation: str
    control_rate_hz: float
    whole_way: bool
    horizon: int
    step_ms: float


class TimingsAnswer(_Answer):
    """Time spent in each stage, in milliseconds."""

    decode: float
    queue: float
    inference: float
    server: float


class LimitedAnswer(_Answer):
    """The effect of a limit on a dimension of the chunk, in its units (docs/robot.md)."""

    dimension: str
    limit: str = Field(pattern="^(velocity|acceleration|jerk|workspace|braking|start)$")
    beyond: float
    changed: float


class CandidateAnswer(_Answer):
    """The scores of one of several chunks, the lower the better."""

    score: float
    distance: float
    roughness: float
    beyond: float


class ActAnswer(_Answer):
    """One answer. reason: why the robot must hold, if so. valid_for_ms: how long the answer may be executed.

    chunk: actions for the moment of the frame and each step_ms after it. action: row 0, the one for the moment of the
    frame, however long the answer took: play the chunk where the horizon is above 1. max_age_ms: the limit of each
    action from its own moment on, so for row i that of the frame plus i * step_ms. limited: empty where the policy's
    chunk kept the service's limits. candidates: where the policy gave several chunks, of which `chosen` was sent.
    """

    action: list[float]
    chunk: list[list[float]]
    step_ms: float
    command: str = Field(pattern="^(act|hold|stop)$")
    reason: str
    token_ids: list[int]
    valid_for_ms: int
    max_age_ms: int
    limited: list[LimitedAnswer]
    candidates: list[CandidateAnswer]
    chosen: int
    action_schema: SchemaAnswer = Field(alias="schema")
    timings_ms: TimingsAnswer


class ModelAnswer(BaseModel):
    """A served model; more fields follow once a worker is ready."""

    id: str
    object: str
    created: int
    owned_by: str


class ModelsAnswer(_Answer):
    """The policy and, where chat is served, the chat model under each of its names."""

    object: str
    data: list[ModelAnswer]


ACT_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON_TYPE: {"schema": ActBody.model_json_schema(), "example": _EXAMPLE},
            MSGPACK_TYPES[0]: {"schema": ActBody.model_json_schema()},
        },
    }
}
_FAILURES = {
    400: "invalid request; error.field names the field",
    404: "unknown model",
    409: "the session was ended",
    413: "request body too large",
    415: "unsupported content type or content encoding",
    429: "all sessions are in use; try again after retry-after seconds",
    503: "the service is stopping, or no worker is ready",
    504: "no action within the time limit",
}
ACT_FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": what} for status, what in _FAILURES.items()
}
CHECK_FAILED: dict[int | str, dict[str, Any]] = {
    503: {"model": StateAnswer, "description": "the check failed; `state` says which state the service is in"}
}
