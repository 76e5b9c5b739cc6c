"""The OpenAPI document and its page. Loaded when they are asked for: they need libraries that serving does not."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.routing import Route

from edgeflow import __version__
from edgeflow.service.chat.body import ChatBody, CompletionBody, PrefixBody, TokenizeBody
from edgeflow.service.frontends.act import ActBody
from edgeflow.service.http.bodies import JSON_TYPE, MSGPACK_TYPES
from edgeflow.service.http.middleware import API, MODEL, MODELS, OPENAPI, PAGE_PARTS, PREFIXES

TITLE = "edgeflow"
_EXAMPLE = {"image": "gICA", "format": "rgb8", "width": 1, "height": 1, "instruction": "grasp the red handle"}


class _ActAnswer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(_ActAnswer):
    """The cause of an error."""

    message: str
    type: str
    param: str | None
    code: str
    """A gRPC status name."""
    field: str
    """`field`, `param`: the part of the request at fault, if any."""


class ErrorAnswer(_ActAnswer):
    """Every error has this form."""

    error: ErrorDetail


class StateAnswer(_ActAnswer):
    """The state of the service."""

    state: str


class SchemaAnswer(_ActAnswer):
    """The meaning of an action's numbers, one entry per number."""

    names: list[str]
    units: list[str]
    low: list[float | None]
    high: list[float | None]
    """Both: null without a limit."""
    relative: list[bool]
    frame: str
    rotation: str
    control_rate_hz: float
    """Relative numbers stand for one control step at this rate; 0 = not stated."""
    whole_way: bool
    """They are the whole way to their target instead."""
    horizon: int
    step_ms: float
    """Both: actions per chunk, and the time between them."""


class TimingsAnswer(_ActAnswer):
    """Time spent in each stage, in milliseconds."""

    decode: float
    queue: float
    inference: float
    server: float


class LimitedAnswer(_ActAnswer):
    """The effect of a limit on a dimension of the chunk, in its units (docs/robots/chunks.md)."""

    dimension: str
    limit: str = Field(pattern="^(velocity|acceleration|jerk|workspace|braking|start)$")
    beyond: float
    changed: float


class CandidateAnswer(_ActAnswer):
    """The scores of one of several chunks, the lower the better."""

    score: float
    distance: float
    roughness: float
    beyond: float


class ActAnswer(_ActAnswer):
    """One answer."""

    action: list[float]
    """Row 0, the one for the moment of the frame, however long the answer took: execute the chunk where the horizon is
    above 1.
    """
    chunk: list[list[float]]
    """Actions for the moment of the frame and each step_ms after it."""
    step_ms: float
    command: str = Field(pattern="^(act|hold|stop)$")
    reason: str
    """Why the robot must hold, if so."""
    token_ids: list[int]
    valid_for_ms: int
    """How long the answer may be executed."""
    max_age_ms: int
    """The limit of each action from its own moment on, so for row i that of the frame plus i * step_ms."""
    limited: list[LimitedAnswer]
    """Empty where the policy's chunk kept the service's limits."""
    candidates: list[CandidateAnswer]
    """Where the policy gave several chunks, of which `chosen` was sent."""
    chosen: int
    action_schema: SchemaAnswer = Field(alias="schema")
    timings_ms: TimingsAnswer


class ModelAnswer(BaseModel):
    """A served model; more fields follow once a worker is ready."""

    id: str
    object: str
    created: int
    owned_by: str


class ModelsAnswer(_ActAnswer):
    """The policy and, where chat is served, the chat model under each of its names."""

    object: str
    data: list[ModelAnswer]


def _failures(why: dict[int, str], model: type[BaseModel] = ErrorAnswer) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": model, "description": text} for status, text in why.items()}


ACT_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON_TYPE: {"schema": ActBody.model_json_schema(), "example": _EXAMPLE},
            MSGPACK_TYPES[0]: {"schema": ActBody.model_json_schema()},
        },
    }
}
_ACT_FAILURES = _failures(
    {
        400: "invalid request; error.field names the field",
        404: "unknown model",
        409: "the session was ended",
        413: "request body too large",
        415: "unsupported content type or content encoding",
        429: "all sessions are in use; try again after retry-after seconds",
        503: "the service is stopping, or no worker is ready",
        504: "no action within the time limit",
    }
)
_CHAT_FAILURES = _failures(
    {
        400: "invalid request; error.param names the field",
        401: "missing, unknown or expired token",
        403: "the token's roles do not permit this request",
        404: "unknown model or slot",
        408: "the request body arrived too slowly",
        413: "request body too large",
        415: "unsupported content type or content encoding",
        429: "too many requests are waiting; try again after retry-after seconds",
        503: "the service is stopping, or no chat model is ready",
        504: "no answer within the time limit",
    }
)


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The OpenAPI document of routes, with the names and texts of their handlers."""
    app = FastAPI(title=TITLE, version=__version__)
    operations = _operations()
    for each in routes:
        (method,) = (each.methods or set()) - {"HEAD"}
        texts = {"name": each.name, "description": inspect.getdoc(each.endpoint), **operations[method, each.path]}
        app.add_api_route(each.path, _handler(each.path), methods=[method], **texts)
    return app.openapi()


def page() -> bytes:
    """The page that shows the document; its parts come from this service, since a robot's network has no internet."""
    script, style, icon = (f"{API}/{name}" for name in PAGE_PARTS)
    shown = get_swagger_ui_html(
        openapi_url=OPENAPI,
        title=f"{TITLE} - Swagger UI",
        swagger_js_url=script,
        swagger_css_url=style,
        swagger_favicon_url=icon,
    )
    return bytes(shown.body)


def page_part(name: str) -> bytes:
    """A file that the page loads, one of PAGE_PARTS."""
    return resources.files("fastapi_offline").joinpath("static", name).read_bytes()


def _operations() -> dict[tuple[str, str], dict[str, Any]]:
    """The heading of each operation, and what the document adds to its route, by method and path."""
    failed = {503: "the check failed; `state` says which state the service is in"}
    check: dict[str, Any] = {"response_model": StateAnswer, "responses": _failures(failed, StateAnswer)}
    live, ready = {"summary": "Liveness", **check}, {"summary": "Readiness", **check}
    act = {"response_model": ActAnswer, "responses": _ACT_FAILURES, "openapi_extra": ACT_BODY}
    model = {"response_model": ModelAnswer, "responses": _failures({404: "unknown model"})}
    streamed = {"description": "the answer; with stream, server-sent events", "content": {"text/event-stream": {}}}
    answer = {"responses": {200: streamed, **_CHAT_FAILURES}}
    chat = {"responses": _CHAT_FAILURES}
    answered = _texts("Answer a conversation", "Answer a conversation; with `stream`, as server-sent events.")
    continued = _texts("Continue a text", "Continue a text; with `stream`, as server-sent events.")
    counted = _texts("Tokenize a text", "Return the token ids of a text, or of messages after the chat template.")
    listed = _texts("List the prefixes", "List the fixed prefix of every declared slot.")
    replaced = _texts(
        "Replace a prefix",
        "Replace the prefix of a declared slot. Returns once the new one is in use; the old one serves until then.",
    )
    removed = _texts("Remove a prefix", "Remove the prefix of a slot.")
    slot = f"{PREFIXES}/{{slot}}"
    return {
        ("GET", "/live"): live,
        ("GET", "/healthz"): live,
        ("GET", "/ready"): ready,
        ("GET", "/readyz"): ready,
        ("POST", "/v1/act"): {"summary": "One action for one observation", **act},
        ("GET", "/metrics"): {"summary": "Metrics for Prometheus", "response_class": PlainTextResponse},
        ("GET", MODELS): {"summary": "List the models", "response_model": ModelsAnswer},
        ("GET", MODEL): {"summary": "Describe a model", **model},
        ("POST", "/v1/chat/completions"): {
            **answered,
            **answer,
            **_body_of(ChatBody),
        },
        ("POST", "/v1/completions"): {
            **continued,
            **answer,
            **_body_of(CompletionBody),
        },
        ("POST", "/tokenize"): {**counted, **chat, **_body_of(TokenizeBody)},
        ("GET", PREFIXES): {**listed, **chat},
        ("PUT", slot): {**replaced, **chat, **_body_of(PrefixBody)},
        ("DELETE", slot): {**removed, **chat},
    }


def _texts(summary: str, description: str) -> dict[str, str]:
    return {"summary": summary, "description": description}


def _body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """The schema of a body for the OpenAPI document, with definitions inlined."""
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})
    content = {"application/json": {"schema": _inlined(schema, definitions)}}
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}}


def _inlined(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        if "$ref" in value:
            return _inlined(definitions[value["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(inner, definitions) for key, inner in value.items()}
    return [_inlined(inner, definitions) for inner in value] if isinstance(value, list) else value


def _handler(path: str) -> Callable[[], None]:
    """A function with the parameters of a path, which the document shows."""

    def handler() -> None: ...

    names = re.findall(r"{(\w+)", path)
    kind = inspect.Parameter.KEYWORD_ONLY
    found = [inspect.Parameter(name, kind, annotation=str) for name in names]
    handler.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    return handler
