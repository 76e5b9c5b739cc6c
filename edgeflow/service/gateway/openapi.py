"""The OpenAPI document and its page. Loaded when they are asked for: they need libraries that serving does not."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from enum import Enum
from importlib import resources
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.routing import Route

from edgeflow.service.chat.body import ChatBody, CompletionBody, PrefixBody, TokenizeBody
from edgeflow.service.frontends.act import ActBody
from edgeflow.service.gateway.operator_documents import OPERATOR_PATHS, operator_operations
from edgeflow.service.http.bodies import JSON_TYPE, MSGPACK_TYPES
from edgeflow.service.http.middleware import API, EVENT_IMAGES, EVENTS, MODEL, MODELS, OPENAPI, PAGE_PARTS, PREFIXES
from edgeflow.version import __version__

TITLE = "edgeflow"
SECTIONS = {
    "Actions": ("/v1/act",),
    "Models": (MODELS,),
    "Chat": ("/v1/chat/", "/v1/completions", "/tokenize", PREFIXES),
    "Live page": (EVENTS,),
    "Operators": OPERATOR_PATHS,
    "Health and metrics": ("/live", "/ready", "/healthz", "/readyz", "/metrics"),
}
"""Beginnings of paths, by section of the document."""
_PIXEL = "gICA"  # one grey pixel, three bytes in base64
_EXAMPLES = {
    "one camera": {
        "image": _PIXEL,
        "format": "rgb8",
        "width": 1,
        "height": 1,
        "instruction": "grasp the red handle",
    },
    "several cameras and state": {
        "images": {"wrist": {"data": _PIXEL, "format": "rgb8", "width": 1, "height": 1}},
        "state": {"observation.state": [0.1, -0.4, 0.2, 0.0, 1.1, 0.3]},
        "instruction": "put the cube into the box",
    },
}


class _Described(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class ErrorDetail(_Described):
    """The cause of an error."""

    message: str
    """One line for people."""
    type: str
    """The kind of error, as clients of OpenAI's API know it."""
    param: str | None
    """The field at fault, or null."""
    code: str
    """A gRPC status name."""
    field: str
    """The field at fault, dotted, or empty."""


class ErrorAnswer(_Described):
    """Every error has this form."""

    error: ErrorDetail
    """The cause."""


class StateAnswer(_Described):
    """The state of the service."""

    state: str
    """starting, warming, ready, degraded, draining, stopped or fault."""


class SchemaAnswer(_Described):
    """The meaning of an action's numbers, one entry per number."""

    names: list[str]
    """Names of the numbers."""
    units: list[str]
    """Units of the numbers."""
    low: list[float | None]
    """Lowest values; null without a limit."""
    high: list[float | None]
    """Highest values; null without a limit."""
    relative: list[bool]
    """True for a displacement."""
    frame: str
    """The frame of displacements of the tool: tool or base."""
    rotation: str
    """The form of rotations: rotvec or euler_xyz."""
    control_rate_hz: float
    """Displacements stand for one control step at this rate; 0 = not stated."""
    whole_way: bool
    """Displacements are the whole way to their target instead."""
    horizon: int
    """Actions per chunk."""
    step_ms: float
    """Time between the actions of a chunk."""


class TimingsAnswer(_Described):
    """Time spent in each stage, in milliseconds."""

    decode: float
    """Decoding the images."""
    queue: float
    """Waiting for a pass."""
    inference: float
    """From the start of the first pass to the end of the last."""
    server: float
    """From the request to the answer."""


class LimitedAnswer(_Described):
    """The effect of a limit on a dimension of the chunk (section `trajectory.limits` of the configuration)."""

    dimension: str
    """Name of the number."""
    limit: str = Field(pattern="^(velocity|acceleration|jerk|workspace|braking|start)$")
    """The limit."""
    beyond: float
    """The most by which the policy's chunk exceeded it, in the unit of the limit."""
    changed: float
    """The most by which all limits together moved the dimension, in its unit."""


class CandidateAnswer(_Described):
    """The scores of one of several chunks, the lower the better."""

    score: float
    """The weighted sum of the others."""
    distance: float
    """Mean squared distance to the chunk in execution, normalised."""
    roughness: float
    """Mean squared jerk per step, normalised."""
    beyond: float
    """Mean excess over the limits, as a share of each."""


class ActAnswer(_Described):
    """The action for one observation."""

    action: list[float]
    """Row 0 of the chunk, for the moment of the frame; execute the chunk where the horizon is above 1."""
    chunk: list[list[float]]
    """Actions for the moment of the frame and each step_ms after it."""
    step_ms: float
    """Time between the rows of the chunk."""
    command: str = Field(pattern="^(act|hold|stop)$")
    """The command for the robot."""
    reason: str
    """Why the robot must hold or stop; empty for act."""
    token_ids: list[int]
    """Action tokens that the numbers stand for."""
    valid_for_ms: int
    """How long the answer may be executed."""
    max_age_ms: int
    """Limit of each row's age, counted from its own moment: that of the frame plus i * step_ms."""
    limited: list[LimitedAnswer]
    """Effects of the service's limits; empty where the policy's chunk kept them."""
    candidates: list[CandidateAnswer]
    """Scores of all chunks, where the policy gave several."""
    chosen: int
    """The candidate that was sent."""
    action_schema: SchemaAnswer = Field(alias="schema")
    """The meaning of the numbers."""
    timings_ms: TimingsAnswer
    """Time spent in each stage."""


class ModelAnswer(BaseModel):
    """A served model; more fields follow once a worker is ready: cameras, state, action elements, limits of prompts."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    """Name of the model."""
    object: str
    """Always model."""
    created: int
    """Start of the service, in seconds since 1970."""
    owned_by: str
    """Always edgeflow."""


class ModelsAnswer(_Described):
    """The policy and, where chat is served, the chat model under each of its names."""

    object: str
    """Always list."""
    data: list[ModelAnswer]
    """The models."""


def _failures(why: dict[int, str], model: type[BaseModel] = ErrorAnswer) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": model, "description": text} for status, text in why.items()}


def _named(examples: dict[str, Any]) -> dict[str, Any]:
    return {name: {"value": value} for name, value in examples.items()}


ACT_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON_TYPE: {"schema": ActBody.model_json_schema(), "examples": _named(_EXAMPLES)},
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


_EVENT_FAILURES = _failures(
    {
        400: "more than four sessions in `detail`, or not their numbers",
        429: "sixteen live pages are open; try again after retry-after seconds",
        503: "the service is stopping",
    }
)
_EVENT_STREAM = {"description": "events, until the caller leaves", "content": {"text/event-stream": {}}}
_EVENT_IMAGE: dict[int | str, dict[str, Any]] = {
    200: {"description": "a JPEG as it came, with an ETag", "content": {"image/jpeg": {}}},
    204: {"description": "no picture came within a second"},
    304: {"description": "the picture of the request's if-none-match is the newest"},
    **_failures({404: "no open session has this number and this camera", 429: "too many pictures are asked for"}),
}
_EVENTS_EXTRA: dict[str, Any] = {
    "parameters": [
        {
            "name": "detail",
            "in": "query",
            "description": "A session whose chunks and state its updates are to carry; up to four.",
            "schema": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 4},
        }
    ]
}


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The OpenAPI document of routes, with the names and texts of their handlers."""
    app = FastAPI(title=TITLE, version=__version__)
    operations = _operations()
    for each in routes:
        (method,) = (each.methods or set()) - {"HEAD"}
        texts = {"name": each.name, "description": inspect.getdoc(each.endpoint), **operations[method, each.path]}
        sections: list[str | Enum] = [name for name, starts in SECTIONS.items() if each.path.startswith(starts)]
        app.add_api_route(each.path, _handler(each.path), methods=[method], tags=sections, **texts)
    return _without_validation(app.openapi())


def _without_validation(made: dict[str, Any]) -> dict[str, Any]:
    """Remove the answer 422 that FastAPI adds to every route with parameters: this service answers 400."""
    for operations in made["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        made["components"]["schemas"].pop(name, None)
    return made


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
    return operator_operations(_failures, _body_of) | {
        ("GET", "/live"): live,
        ("GET", "/healthz"): live,
        ("GET", "/ready"): ready,
        ("GET", "/readyz"): ready,
        ("POST", "/v1/act"): {"summary": "One action for one observation", **act},
        ("GET", "/metrics"): {"summary": "Metrics for Prometheus", "response_class": PlainTextResponse},
        ("GET", EVENTS): {
            "summary": "Watch sessions and service",
            "responses": {200: _EVENT_STREAM, **_EVENT_FAILURES},
            "openapi_extra": _EVENTS_EXTRA,
        },
        ("GET", EVENT_IMAGES): {
            "summary": "The newest picture of a camera",
            "responses": _EVENT_IMAGE,
        },
        ("GET", MODELS): {"summary": "List the models", "response_model": ModelsAnswer},
        ("GET", MODEL): {"summary": "Describe a model", **model},
        ("POST", "/v1/chat/completions"): {**answered, **answer, **_body_of(ChatBody)},
        ("POST", "/v1/completions"): {**continued, **answer, **_body_of(CompletionBody)},
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

    names = re.findall(r"{(\w+):?(\w*)", path)
    kind = inspect.Parameter.KEYWORD_ONLY
    found = [inspect.Parameter(name, kind, annotation=int if of == "int" else str) for name, of in names]
    handler.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    return handler
