"""What the OpenAPI document says of requests and answers; the tests hold the service to it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from edgeflow.service.http_act import JSON_TYPE, MSGPACK_TYPES, ActBody

_EXAMPLE = {"image": "gICA", "format": "rgb8", "width": 1, "height": 1, "instruction": "grasp the red handle"}


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(_Answer):
    """code: a gRPC status name. field, param: what in the request is at fault; empty or null where nothing is."""

    message: str
    type: str
    param: str | None
    code: str
    field: str


class ErrorAnswer(_Answer):
    """The one shape of errors."""

    error: ErrorDetail


class StateAnswer(_Answer):
    """The service's state."""

    state: str


class SchemaAnswer(_Answer):
    """What the numbers of an action mean, one entry a number. low, high: null where there is no limit."""

    names: list[str]
    units: list[str]
    low: list[float | None]
    high: list[float | None]
    relative: list[bool]
    frame: str
    rotation: str


class TimingsAnswer(_Answer):
    """Where the time went, in milliseconds."""

    decode: float
    queue: float
    inference: float
    server: float


class ActAnswer(_Answer):
    """One action. reason: why the robot holds. valid_for_ms: how long the action may be executed."""

    action: list[float]
    command: str = Field(pattern="^(act|hold|stop)$")
    reason: str
    token_ids: list[int]
    valid_for_ms: int
    action_schema: SchemaAnswer = Field(alias="schema")
    timings_ms: TimingsAnswer


class ModelAnswer(BaseModel):
    """The model that is served; more is known of it once a worker is ready."""

    id: str
    object: str
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
    400: "something in the request is wrong; error.field says what",
    404: "no such model",
    409: "the session was ended",
    413: "the body is larger than permitted",
    415: "a content type or encoding that is not served",
    429: "all sessions are taken; retry-after says when to try again",
    503: "stopping, or no worker is ready",
    504: "no action in time",
}
ACT_FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": what} for status, what in _FAILURES.items()
}
NOT_SO: dict[int | str, dict[str, Any]] = {
    503: {"model": StateAnswer, "description": "not live, or not ready: the state says why"}
}
