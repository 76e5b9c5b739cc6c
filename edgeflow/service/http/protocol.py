"""HTTP connections with limits that uvicorn lacks, on connections, chunks and the time of heads and bodies.

A connection ends by itself once nobody reads its last answer, which is written so that the client can read it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from edgeflow.config.service import ServiceConfig
from edgeflow.service.http.answers import ABORT, error_of_status
from edgeflow.service.observe.process_metrics import ProcessMetrics

GOODBYE_S = 1.0  # for a client to read its last answer
MAX_REJECTED = 256  # connections answered with 429 at the same time; further ones are reset
LINGER_S = 30.0  # for a client to read an answer that is complete, once the connection is closed
HEADER_BYTES = 16 << 10
MAX_CHUNKS = 2048  # parsing one takes about 10 us, all at once
BODY_BYTES_PER_S = 1024
CHECK_S = 1.0  # between checks of a body's rate
_HEAD_END = re.compile(rb"\n\r?\n")
_LENGTH = re.compile(rb"(?i)\ncontent-length[ \t]*:[^\r\n]*")
_WORDS = {
    431: f"the headers exceed {HEADER_BYTES} bytes",
    501: "this transfer encoding is not supported",
    505: "only HTTP/1.0 and HTTP/1.1 are served",
}


def last_answer(status: int, message: str, *headers: str) -> bytes:
    """An answer in the form of every error, after which the connection is closed."""
    body = json.dumps(error_of_status(status, message)).encode()
    first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
    lines = [first, "connection: close", "content-type: application/json", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


TOO_MANY = last_answer(429, "too many connections: close some, or try again later", "retry-after: 1")


@dataclass(slots=True)
class Rejections:
    """Connections beyond a limit, which are answered with 429."""

    most_bytes: int
    """The most bytes read from one of them."""
    open: set[asyncio.Transport] = field(default_factory=set)

    def reject(self, transport: asyncio.Transport) -> None:
        """Answer 429, or reset the connection if too many are being rejected already."""
        if len(self.open) >= MAX_REJECTED:
            transport.abort()
            return
        self.open.add(transport)
        transport.set_protocol(_Rejected(self, transport))


class _Rejected(asyncio.Protocol):
    """A connection that gets 429 with its first bytes, and is read until the client has closed it.

    Closing with unread bytes would reset the connection, and the client might lose the answer.
    """

    def __init__(self, rejections: Rejections, transport: asyncio.Transport) -> None:
        self._rejections = rejections
        self._transport = transport
        self._left = rejections.most_bytes
        self._answered = False
        self._timer = asyncio.get_running_loop().call_later(GOODBYE_S, self._end)

    def data_received(self, data: bytes) -> None:
        self._answer()
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        self._timer.cancel()
        self._rejections.open.discard(self._transport)

    def _answer(self) -> None:
        if not self._answered:
            self._answered = True
            self._transport.write(TOO_MANY)
            if self._transport.can_write_eof():
                self._transport.write_eof()

    def _end(self) -> None:
        """Give up on a client that neither speaks nor closes."""
        self._answer()
        self._transport.close()
        self._timer = asyncio.get_running_loop().call_later(GOODBYE_S, self._transport.abort)


class Connection(H11Protocol):
    """The library's connection, which requests can end under ABORT."""

    _linger: asyncio.TimerHandle | None = None

    @property
    def answering(self) -> bool:
        """True until the answer has left this process."""
        answered = self.cycle is None or self.cycle.response_complete
        return not answered or bool(self.transport.get_write_buffer_size())

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app_state = {ABORT: transport.abort}

    def connection_lost(self, exc: Exception | None) -> None:
        if self._linger is not None:
            self._linger.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """End a closed connection even if its last answer is never read."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._end_soon()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection even if its last answer is never read."""
        super().timeout_keep_alive_handler()
        self._end_soon()

    def _end_soon(self) -> None:
        if self._linger is None:
            self._linger = self.loop.call_later(LINGER_S, self.transport.abort)


class SharedLimits:
    """Limits and counts shared by all connections of a server."""

    def __init__(self, config: ServiceConfig, metrics: ProcessMetrics) -> None:
        timing, limits = config.timing, config.limits
        self.headers_s, self.body_s = timing.http_headers_ms / 1000, timing.http_body_ms / 1000
        self.connections, self.per_address = limits.http_connections, limits.http_connections_per_address
        self.metrics = metrics
        self.rejections = Rejections(limits.http_body_bytes + HEADER_BYTES)
        self.open: Counter[str] = Counter()
        self.partial_bytes = 0  # of incomplete messages of all websockets
        self.partial_of: Counter[str] = Counter()  # the same by address

    def connect(self, config: Config, state: ServerState) -> BoundedProtocol:
        """A connection under these limits."""
        return BoundedProtocol(config, state, {}, bounds=self)

    def left(self, address: str) -> None:
        """A connection from `address` is gone."""
        self.open[address] -= 1
        self.open += Counter()  # forgets addresses without connections
        self.partial_of += Counter()

    def reject(self, address: str) -> str:
        """The limit that one more connection from `address` would exceed, or ""."""
        if self.open.total() >= self.connections:
            return "http_connections"
        return "http_connections_per_address" if self.open[address] >= self.per_address else ""


class BoundedProtocol(Connection):
    """A connection. A late client gets 408 and is disconnected; a connection too many gets 429."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        bounds: SharedLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = self._strict = _StrictConnection(h11.SERVER, HEADER_BYTES)
        self._bounds = bounds
        self._address: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waits_for_body = False
        self._started_s = 0.0
        self._received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = get_remote_addr(transport)
        address = peer[0] if peer else ""
        if limit := self._bounds.reject(address):
            self._bounds.metrics.limit_rejections.labels(limit).inc()
            self._bounds.rejections.reject(transport)
            return
        super().connection_made(transport)
        self._address = address
        self._bounds.open[address] += 1
        self._begin(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self._address is not None:
            self._bounds.left(self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is None:  # the next request on a kept-alive connection
            self._begin(False)
        self._received += len(data)
        super().data_received(data)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection on. It still counts among those of its address."""
        self._stop()
        address, self._address = self._address, None
        made: Any = self.ws_protocol_class
        self.ws_protocol_class = partial(made, bounds=self._bounds, address=address)  # type: ignore[assignment]
        super().handle_websocket_upgrade(event)

    def handle_events(self) -> None:
        super().handle_events()
        if self.transport.get_protocol() is not self:
            return  # it is a websocket now
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            if not self._waits_for_body:
                self._begin(True)
        elif state is not h11.IDLE or self._waits_for_body:
            self._stop()

    def send_400_response(self, _: str) -> None:
        """Reject invalid HTTP with an ordinary error body; the library's text would repeat the client's words."""
        status = self._strict.status
        self._close_with(status, _WORDS.get(status, "this is not a valid HTTP request"))

    def _begin(self, body: bool) -> None:
        self._stop()
        self._waits_for_body = body
        self._started_s, self._received = self.loop.time(), 0
        wait_s = min(CHECK_S, self._bounds.body_s) if body else self._bounds.headers_s
        self._timer = self.loop.call_later(wait_s, self._check)

    def _stop(self) -> None:
        self._waits_for_body = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        elapsed_s = self.loop.time() - self._started_s
        if not self._waits_for_body:
            self._cut("http_headers_ms", "the request's headers")
        elif elapsed_s >= self._bounds.body_s:
            self._cut("http_body_ms", "the request's body")
        elif self._received < BODY_BYTES_PER_S * elapsed_s:
            self._cut("http_body_rate", "the request's body")
        else:
            self._timer = self.loop.call_later(min(CHECK_S, self._bounds.body_s - elapsed_s), self._check)

    def _cut(self, limit: str, what: str) -> None:
        """Send 408 if nothing was answered yet, then close."""
        self._stop()
        self._bounds.metrics.limit_rejections.labels(limit).inc()
        self._close_with(408, f"{what} did not arrive in time")

    def _close_with(self, status: int, message: str) -> None:
        """Write a last answer, unless one was begun, and close."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(last_answer(status, message))
        self.transport.close()
        self.loop.call_later(GOODBYE_S, self.transport.abort)


class _StrictConnection(h11.Connection):
    """An h11 connection that rejects bodies of more than MAX_CHUNKS chunks, and requests that a proxy might read as
    others: with two lengths, or lines that end in a bare LF.

    status: the answer to what was rejected.
    """

    def __init__(self, role: type[h11.SERVER], max_incomplete_event_size: int) -> None:
        super().__init__(role, max_incomplete_event_size)
        self.status = 400
        self._chunks = 0

    def next_event(self) -> Any:
        try:
            if self.their_state is h11.IDLE:
                _check_head(self.trailing_data[0])
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._chunks = 0
                _check_request(event)
            elif isinstance(event, h11.Data) and event.chunk_start:
                self._chunks += 1
                if self._chunks > MAX_CHUNKS:
                    raise h11.RemoteProtocolError(f"more than {MAX_CHUNKS} chunks")
        except h11.RemoteProtocolError as error:
            self.status = error.error_status_hint
            raise
        return event


def _check_head(data: bytes) -> None:
    """Check what h11 repairs without leaving a trace."""
    end = _HEAD_END.search(data)
    if end is None:
        return
    head = data[: end.end()]
    if head.count(b"\n") != head.count(b"\r\n"):
        raise h11.RemoteProtocolError("bare LF")
    lengths = _LENGTH.findall(head)
    if len(lengths) > 1 or b"," in b"".join(lengths):
        raise h11.RemoteProtocolError("several lengths")


def _check_request(request: h11.Request) -> None:
    if request.http_version not in (b"1.0", b"1.1"):
        raise h11.RemoteProtocolError("version", error_status_hint=505)
    names = {name for name, _ in request.headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        raise h11.RemoteProtocolError("two lengths")
