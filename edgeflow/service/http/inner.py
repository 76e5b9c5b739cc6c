"""HTTP behind the gateway, which has checked the head of each request and its caller; nobody else connects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import uuid
from collections.abc import Callable, Generator
from typing import Any

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgeflow.errors import EdgeflowError, RequestError
from edgeflow.reasons import Reason
from edgeflow.service.http.edge import ABORT, CALLER, REQUEST_ID, UnsupportedEncoding, error_body
from edgeflow.service.http.settings import quiet_settings
from edgeflow.service.observe.lines import Log
from edgeflow.service.security.auth import Caller

PEER, PRINCIPAL, TOKEN = b"x-edgeflow-peer", b"x-edgeflow-principal", b"x-edgeflow-token"
GOOD_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
GOODBYE_S = 1.0
LINGER_S = 30.0  # for a client to read an answer that is complete
FLUSH_S = 1.0
FLUSH_CHECK_S = 0.01


class InnerEdge:
    """The middleware: the caller as the gateway names it, error bodies, and the end of readers that stop.

    reader_s: how long a reader may take nothing before its connection is ended.
    """

    def __init__(self, app: ASGIApp, log: Log, reader_s: float) -> None:
        self._app = app
        self._log = log
        self._reader_s = reader_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        request_id = scope[REQUEST_ID] = _request_id(headers.get(b"x-request-id", b""))
        scope[CALLER] = Caller(*(headers.get(name, b"").decode("latin-1") for name in (PEER, PRINCIPAL, TOKEN)))
        abort = scope.get("state", {}).get(ABORT, lambda: None)
        started = False

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
            _check_encoding(headers)
            await self._app(scope, receive, tracked)
        except ClientDisconnect:
            return
        except EdgeflowError as error:
            await _answer(tracked, error) if not started else None
        except Exception as error:
            text = f"internal error, incident {self._log.incident('chat', error)}"
            if started:
                abort()
            else:
                await _answer(tracked, EdgeflowError(text))


def _check_encoding(headers: dict[bytes, bytes]) -> None:
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnsupportedEncoding(
            "compressed bodies are not accepted: send the body uncompressed",
            field="content-encoding",
            reason=Reason.CONTENT_ENCODING,
        )


def _request_id(given: bytes) -> str:
    return given.decode() if GOOD_ID.fullmatch(given) else uuid.uuid4().hex


async def _answer(send: Send, error: EdgeflowError) -> None:
    field = error.field if isinstance(error, RequestError) else ""
    body = json.dumps(error_body(error.code, error.text, field)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if isinstance(error, RequestError) and error.retry_after_ms is not None:
        headers.append((b"retry-after", str(-(-error.retry_after_ms // 1000)).encode()))
    await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Protocol(H11Protocol):
    """A connection of the gateway, which limits time and size of heads; a request may end it at once."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {ABORT: transport.abort}

    @property
    def answering(self) -> bool:
        """True until the answer has left this process."""
        answered = self.cycle is None or self.cycle.response_complete
        return not answered or bool(self.transport.get_write_buffer_size())

    def on_response_complete(self) -> None:
        """A connection that was closed ends, whether or not its last answer was read."""
        super().on_response_complete()
        if self.transport.is_closing():
            self.loop.call_later(LINGER_S, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, whether or not its last answer was read."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(GOODBYE_S, self.transport.abort)


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals alone and listens on a bound socket of either kind."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving, like the library's own method."""
        loop = asyncio.get_running_loop()
        self.servers = []
        for sock in sockets or []:
            create: Callable[..., Any] = loop.create_server
            if sock.family == socket.AF_UNIX:
                create = loop.create_unix_server
            self.servers.append(await create(self._connection, sock=sock, backlog=self.config.backlog))
        self.started = True

    def _connection(self) -> H11Protocol:
        return _Protocol(self.config, self.server_state, {})


class InnerServer:
    """Serves an application on a bound socket between `start` and `stop`."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        settings = quiet_settings(app)
        self._server = _Server(settings)
        self._listener = listener
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start serving."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]), name="chat-http")

    async def flush(self) -> None:
        """Wait until answers have left this process, at most FLUSH_S."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + FLUSH_S
        connections = self._server.server_state.connections
        while loop.time() < until_s and any(isinstance(each, _Protocol) and each.answering for each in connections):
            await asyncio.sleep(FLUSH_CHECK_S)

    async def stop(self) -> None:
        """Finish running requests, then close."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
        self._listener.close()
