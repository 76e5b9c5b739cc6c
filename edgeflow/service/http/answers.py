"""Answers to all HTTP requests: request ids, errors without exception texts, and slow readers."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeflow.service.observe.log import Log
from edgeflow_client.errors import EdgeflowError, RequestError, Unauthenticated
from edgeflow_client.reasons import Reason

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
CALLER = "edgeflow.caller"  # key in the ASGI scope
ABORT = "edgeflow.abort"  # key in the state of a request: ends its connection
REQUEST_ID = "edgeflow.request_id"  # key in the ASGI scope: the client's id or a new one, repeated in every answer
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Value = TypeVar("Value")
KINDS = {
    "http": "http.response",
    "websocket": "websocket.http.response",
}  # the answers of each scope; the latter is no upgrade
GOOD_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


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


async def _framework_error(_: Request, error: Exception) -> Response:
    """The answer to what the framework itself rejects: an unknown path or method."""
    rejected = cast("HTTPException", error)
    return JSONResponse(
        error_of_status(rejected.status_code, str(rejected.detail)), rejected.status_code, rejected.headers
    )


def application(routes: Sequence[BaseRoute]) -> Starlette:
    """The application of a process."""
    app = Starlette(routes=routes, exception_handlers={HTTPException: _framework_error})
    app.router.redirect_slashes = False  # a redirect would repeat the Host header
    return app


async def next_part(request: Request, data: bytearray) -> bool:
    """Add the next part of a body; False after the last one. ClientDisconnect if the client has left."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    data += message.get("body", b"")
    return bool(message.get("more_body", False))


async def unless_gone(request: Request, work: Coroutine[Any, Any, Value]) -> Value:
    """The result of work for a request whose body was read; ClientDisconnect, and its end, once the client leaves."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Middleware:
    """An ASGI middleware that answers every exception of `admit` and the routes.

    reader_s: how long a reader may take nothing before its connection is ended.
    """

    def __init__(self, app: ASGIApp, log: Log, reader_s: float) -> None:
        self._app = app
        self._log = log
        self._reader_s = reader_s

    def admit(self, scope: Scope, receive: Receive) -> Receive:
        """Set the request's CALLER, reject what cannot be served, and limit its body."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in KINDS:
            return
        answer = _ResponseStream(scope, send, self._reader_s)
        try:
            admitted = self.admit(scope, receive)
            _check_encoding(dict(scope["headers"]))
            await self._app(scope, admitted, answer.send)
        except ClientDisconnect:
            return
        except EdgeflowError as error:
            await answer.reject(error)
        except Exception as error:
            await answer.reject(EdgeflowError(f"internal error, incident {self._log.incident('http', error)}"))


class _ResponseStream:
    """The answer to one request."""

    def __init__(self, scope: Scope, send: Send, reader_s: float) -> None:
        self._send = send
        self._kind = KINDS[scope["type"]]
        self._reader_s = reader_s
        self._abort = scope.get("state", {}).get(ABORT, lambda: None)
        self._id = scope[REQUEST_ID] = _request_id(scope["headers"])
        self._started = False

    async def send(self, message: Message) -> None:
        """Send a part, and end the connection if its reader takes nothing for too long."""
        self._started = True
        if message["type"] == f"{self._kind}.start":
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._id.encode())]
        timer = asyncio.get_running_loop().call_later(self._reader_s, self._abort)
        try:
            await self._send(message)
        finally:
            timer.cancel()

    async def reject(self, error: EdgeflowError) -> None:
        """Answer with an error; if an answer has begun, end the connection."""
        if self._started:
            self._abort()
            return
        field = error.field if isinstance(error, RequestError) else ""
        body = json.dumps(error_body(error.code, error.text, field)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if isinstance(error, Unauthenticated):
            headers.append((b"www-authenticate", b"Bearer"))
        if isinstance(error, RequestError) and error.retry_after_ms is not None:
            headers.append((b"retry-after", str(-(-error.retry_after_ms // 1000)).encode()))
        await self.send({"type": f"{self._kind}.start", "status": error.http_status, "headers": headers})
        await self.send({"type": f"{self._kind}.body", "body": body})


def _check_encoding(headers: dict[bytes, bytes]) -> None:
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnsupportedEncoding(
            "compressed bodies are not accepted: send the body uncompressed",
            field="content-encoding",
            reason=Reason.CONTENT_ENCODING,
        )


def _request_id(headers: list[tuple[bytes, bytes]]) -> str:
    given = next((value for name, value in headers if name == b"x-request-id"), b"")
    return given.decode() if GOOD_ID.fullmatch(given) else uuid.uuid4().hex
