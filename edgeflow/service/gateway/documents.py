"""The OpenAPI document and its page. Loaded when they are asked for: they need libraries that serving does not."""

from __future__ import annotations

from importlib import resources
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from edgeflow import __version__
from edgeflow.service.chat.body import PREFIXES, ChatBody, CompletionBody, PrefixBody, TokenizeBody
from edgeflow.service.gateway.routes import DOCS, MODEL, OPENAPI, PAGE_PARTS, TITLE, Endpoint
from edgeflow.service.http.schema import (
    ACT_BODY,
    ACT_FAILURES,
    CHECK_FAILED,
    ActAnswer,
    ErrorAnswer,
    ModelAnswer,
    ModelsAnswer,
    StateAnswer,
)

CHECKS = {"/live": "Liveness", "/healthz": "Liveness", "/ready": "Readiness", "/readyz": "Readiness"}
_SLOT = f"{PREFIXES}/{{slot}}"
SUMMARIES = {
    **{("GET", path): title for path, title in CHECKS.items()},
    ("POST", "/v1/act"): "One action for one observation",
    ("GET", "/metrics"): "Metrics for Prometheus",
    ("GET", "/v1/models"): "List the models",
    ("GET", MODEL): "Describe a model",
    ("POST", "/v1/chat/completions"): "Answer a conversation",
    ("POST", "/v1/completions"): "Continue a text",
    ("POST", "/tokenize"): "Tokenize a text",
    ("GET", PREFIXES): "List the prefixes",
    ("PUT", _SLOT): "Replace a prefix",
    ("DELETE", _SLOT): "Remove a prefix",
}
"""The headings of the page's operations."""
_WHY = {
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
FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": why} for status, why in _WHY.items()
}
NO_MODEL: dict[int | str, dict[str, Any]] = {404: {"model": ErrorAnswer, "description": "unknown model"}}
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "the answer; with stream, server-sent events", "content": {"text/event-stream": {}}},
    **FAILURES,
}


def body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """The schema of a body for the OpenAPI document, with definitions inlined."""
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})
    content = {"application/json": {"schema": _inlined(schema, definitions)}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        if "$ref" in value:
            return _inlined(definitions[value["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(inner, definitions) for key, inner in value.items()}
    return [_inlined(inner, definitions) for inner in value] if isinstance(value, list) else value


def _described() -> dict[tuple[str, str], dict[str, Any]]:
    """The additions of the document to each route, by method and path."""
    check = {"response_model": StateAnswer, "responses": CHECK_FAILED}
    found: dict[tuple[str, str], dict[str, Any]] = {("GET", path): check for path in CHECKS}
    found |= {
        ("POST", "/v1/act"): {"response_model": ActAnswer, "responses": ACT_FAILURES, "openapi_extra": ACT_BODY},
        ("GET", "/metrics"): {"response_class": PlainTextResponse},
        ("GET", "/v1/models"): {"response_model": ModelsAnswer},
        ("GET", MODEL): {"response_model": ModelAnswer, "responses": NO_MODEL},
        ("POST", "/v1/chat/completions"): {"responses": ANSWERS, "openapi_extra": body_of(ChatBody)},
        ("POST", "/v1/completions"): {"responses": ANSWERS, "openapi_extra": body_of(CompletionBody)},
        ("POST", "/tokenize"): {"responses": FAILURES, "openapi_extra": body_of(TokenizeBody)},
        ("GET", PREFIXES): {"responses": FAILURES},
        ("PUT", _SLOT): {"responses": FAILURES, "openapi_extra": body_of(PrefixBody)},
        ("DELETE", _SLOT): {"responses": FAILURES},
    }
    return found


def document(endpoints: list[Endpoint]) -> dict[str, Any]:
    """The OpenAPI document of the routes."""
    app = FastAPI(title=TITLE, version=__version__)
    described = _described()
    for each in endpoints:
        key = each.method, each.path
        app.add_api_route(each.path, _handler(each), methods=[each.method], summary=SUMMARIES[key], **described[key])
    return app.openapi()


def page() -> bytes:
    """The page that shows the document; its parts come from this service, since a robot's network has no internet."""
    script, style, icon = (f"{DOCS}/{name}" for name in PAGE_PARTS)
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


def _handler(endpoint: Endpoint) -> Any:
    """A function with the name, the text and the parameters that the document shows."""
    if "{slot}" in endpoint.path:

        async def handler(slot: str) -> None: ...
    elif "{name" in endpoint.path:

        async def handler(name: str) -> None: ...  # type: ignore[misc]
    else:

        async def handler() -> None: ...  # type: ignore[misc]

    handler.__name__, handler.__doc__ = endpoint.handler.__name__, endpoint.handler.__doc__
    return handler
