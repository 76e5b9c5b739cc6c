"""The answers to all requests, of strangers and of the gateway: their ids, errors without exception text, their end."""

from __future__ import annotations

import asyncio
import json
import re
import uuid

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeflow.service.http.errors import UnsupportedEncoding, error_body
from edgeflow.service.observe.log import Log
from edgeflow_client.errors import EdgeflowError, RequestError, Unauthenticated
from edgeflow_client.reasons import Reason

CALLER = "edgeflow.caller"  # key in the ASGI scope
ABORT = "edgeflow.abort"  # key in the state of a request: ends its connection
REQUEST_ID = "edgeflow.request_id"  # key in the ASGI scope: the client's id or a new one, repeated in every answer
GOOD_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Answers:
    """An ASGI middleware that answers whatever `admit` and the routes raise.

    reader_s: how long a reader may take nothing before its connection is ended.
    """

    def __init__(self, app: ASGIApp, log: Log, reader_s: float) -> None:
        self._app = app
        self._log = log
        self._reader_s = reader_s

    def admit(self, scope: Scope, receive: Receive) -> Receive:
        """Set the request's CALLER, refuse what cannot be served, and limit its body."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = _Answer(scope, send, self._reader_s)
        try:
            admitted = self.admit(scope, receive)
            _check_encoding(dict(scope["headers"]))
            await self._app(scope, admitted, answer.send)
        except ClientDisconnect:
            return
        except EdgeflowError as error:
            await answer.refuse(error)
        except Exception as error:
            await answer.refuse(EdgeflowError(f"internal error, incident {self._log.incident('http', error)}"))


class _Answer:
    """The answer to one request."""

    def __init__(self, scope: Scope, send: Send, reader_s: float) -> None:
        self._send = send
        self._reader_s = reader_s
        self._abort = scope.get("state", {}).get(ABORT, lambda: None)
        self._id = scope[REQUEST_ID] = _request_id(scope["headers"])
        self._started = False

    async def send(self, message: Message) -> None:
        """Send a part, and end the connection if its reader takes nothing for too long."""
        self._started = True
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._id.encode())]
        timer = asyncio.get_running_loop().call_later(self._reader_s, self._abort)
        try:
            await self._send(message)
        finally:
            timer.cancel()

    async def refuse(self, error: EdgeflowError) -> None:
        """Answer with an error; where an answer has begun, the connection ends."""
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
        await self.send({"type": "http.response.start", "status": error.http_status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


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
