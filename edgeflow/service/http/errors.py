"""Errors of HTTP: those that only HTTP has, and the body that every error is answered with."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgeflow_client.errors import RequestError

_TYPES = {
    "INVALID_ARGUMENT": "invalid_request_error",
    "FAILED_PRECONDITION": "invalid_request_error",
    "NOT_FOUND": "invalid_request_error",
    "UNIMPLEMENTED": "invalid_request_error",
    "UNAUTHENTICATED": "authentication_error",
    "PERMISSION_DENIED": "permission_error",
    "RESOURCE_EXHAUSTED": "rate_limit_error",
}
_CODES = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    431: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    505: "UNIMPLEMENTED",
}


class BodyTooLarge(RequestError):
    """The request body is too large."""

    code = "RESOURCE_EXHAUSTED"
    http_status = 413


class BodyLate(RequestError):
    """The request body arrived too slowly."""

    code = "DEADLINE_EXCEEDED"
    http_status = 408


class UnsupportedEncoding(RequestError):
    """The request body is compressed."""

    http_status = 415


class HeadersTooLarge(RequestError):
    """The headers are too many or too long."""

    code = "RESOURCE_EXHAUSTED"
    http_status = 431


def error_body(code: str, message: str, field: str = "") -> dict[str, Any]:
    """The body of every error; type and param are for clients of OpenAI's API."""
    kind = _TYPES.get(code, "server_error")
    return {"error": {"message": message, "type": kind, "param": field or None, "code": code, "field": field}}


def error_of_status(status: int, message: str) -> dict[str, Any]:
    """The body of an error raised by the web framework."""
    return error_body(_CODES.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT"), message)


async def framework_error(_: Request, error: Exception) -> Response:
    """The answer to what the framework itself refuses: an unknown path or method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = str(error.detail) if isinstance(error, HTTPException) else "internal error"
    headers = error.headers if isinstance(error, HTTPException) else None
    return JSONResponse(error_of_status(status, detail), status, headers)
