"""A route of the gateway, for the application and for its OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

TITLE = "edgeflow"
DOCS, OPENAPI = "/docs", "/openapi.json"
PAGE_PARTS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
"""Script, style and icon of the page at DOCS, with their media types."""
MODEL = "/v1/models/{name:path}"  # names have slashes


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route. The handler's name and text are those of the OpenAPI document."""

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
