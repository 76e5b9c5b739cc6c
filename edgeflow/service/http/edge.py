"""The ASGI middleware of every HTTP request: token, size limits, error bodies without exception text."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeflow.config import is_loopback
from edgeflow.errors import EdgeflowError, PermissionDenied, RequestError, Unauthenticated
from edgeflow.reasons import Reason
from edgeflow.service.http.hosts import Hosts
from edgeflow.service.observe.lines import Log
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow.service.security.auth import ADMIN, ANY, CHAT, CONTROL, OBSERVE, Caller, Guard, Role

CALLER = "edgeflow.caller"  # key in the ASGI scope
ABORT = "edgeflow.abort"  # key in the state of a request: ends its connection
REQUEST_ID = "edgeflow.request_id"  # key in the ASGI scope: the client's id or a new one, repeated in every answer
GOOD_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
MAX_HEADERS = 64
MAX_HEADER_BYTES = 16 << 10
ANY_HOST = Hosts()
OPEN_PATHS = frozenset({"/live", "/ready", "/healthz", "/readyz"})
ADMIN_PATH = "/admin/"
ROLES: dict[str, frozenset[Role]] = {
    "/v1/act": CONTROL,
    "/v1/models": ANY,
    "/v1/chat/completions": CHAT,
    "/v1/completions": CHAT,
    "/tokenize": CHAT,
    "/metrics": OBSERVE,
    "/docs": OBSERVE,
    "/openapi.json": OBSERVE,
}
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


class Edge:
    """The middleware; it also answers whatever the routes raise.

    Paths without an entry in ROLES require the role admin; without tokens, those below ADMIN_PATH are limited to
    loopback. OPEN_PATHS may be called by anyone, under any name of the service.

    reader_s: how long a reader may take nothing before its connection is ended.
    """

    def __init__(
        self,
        app: ASGIApp,
        guard: Guard,
        body_bytes: int,
        metrics: ProcessMetrics,
        log: Log,
        *,
        hosts: Hosts = ANY_HOST,
        reader_s: float = 30.0,
    ) -> None:
        self._app = app
        self._reader_s = reader_s
        self._hosts = hosts
        self._guard = guard
        self._body_bytes = body_bytes
        self._metrics = metrics
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False
        request_id = scope[REQUEST_ID] = _request_id(scope["headers"])
        abort = scope.get("state", {}).get(ABORT, lambda: None)

        async def tracked(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            timer = asyncio.get_running_loop().call_later(self._reader_s, abort)
            try:
                await send(message)
            finally:
                timer.cancel()

        try:
            self._check_size(scope["headers"])
            scope[CALLER] = self._caller(scope)
            self._check_body_headers(dict(scope["headers"]))
            await self._app(scope, self._limited(receive), tracked)
        except ClientDisconnect:
            return
        except EdgeflowError as error:
            await self._answer(tracked, error) if not started else None
        except Exception as error:
            text = f"internal error, incident {self._log.incident('http', error)}"
            if not started:
                await self._answer(tracked, EdgeflowError(text))

    def _check_size(self, headers: list[tuple[bytes, bytes]]) -> None:
        if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
            self._metrics.limit_rejections.labels("http_headers").inc()
            text = f"more than {MAX_HEADERS} headers, or more than {MAX_HEADER_BYTES} bytes of them"
            raise HeadersTooLarge(text, field="headers", reason=Reason.HEADERS_TOO_LARGE)

    def _caller(self, scope: Scope) -> Caller:
        peer, path = (scope.get("client") or ("",))[0], scope["path"]
        if path in OPEN_PATHS:
            return Caller(peer)
        shown = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
        try:
            self._hosts.check(scope["headers"])
            if path.startswith(ADMIN_PATH) and not self._guard.asks and not is_loopback(peer):
                raise PermissionDenied(
                    "administration without tokens is limited to this machine: configure tokens_file",
                    field="peer",
                    reason=Reason.NOT_LOOPBACK,
                )
            return self._guard.check(shown, ROLES.get(path, ADMIN), peer)
        except (Unauthenticated, PermissionDenied) as error:
            self._guard.refused(path if path in ROLES else "unknown", peer, error)
            raise

    def _check_body_headers(self, headers: dict[bytes, bytes]) -> None:
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise UnsupportedEncoding(
                "compressed bodies are not accepted: send the body uncompressed",
                field="content-encoding",
                reason=Reason.CONTENT_ENCODING,
            )
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._body_bytes:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Receive:
        """Count the bytes of a body as it arrives, since it may lack a length."""
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._body_bytes:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> BodyTooLarge:
        self._metrics.limit_rejections.labels("http_body_bytes").inc()
        return BodyTooLarge(
            f"exceeds the limit of {self._body_bytes} bytes", field="body", reason=Reason.BODY_TOO_LARGE
        )

    async def _answer(self, send: Send, error: EdgeflowError) -> None:
        field = error.field if isinstance(error, RequestError) else ""
        body = json.dumps(error_body(error.code, error.text, field)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if isinstance(error, Unauthenticated):
            headers.append((b"www-authenticate", b"Bearer"))
        if isinstance(error, RequestError) and error.retry_after_ms is not None:
            headers.append((b"retry-after", str(-(-error.retry_after_ms // 1000)).encode()))
        await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _request_id(headers: list[tuple[bytes, bytes]]) -> str:
    given = next((value for name, value in headers if name == b"x-request-id"), b"")
    return given.decode() if GOOD_ID.fullmatch(given) else uuid.uuid4().hex
