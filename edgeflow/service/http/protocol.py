"""An HTTP protocol with limits that uvicorn lacks: time for headers and bodies, connections, chunks."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from edgeflow.config import ServiceConfig
from edgeflow.service.http.edge import error_body
from edgeflow.service.observe.process_metrics import ProcessMetrics

HEADER_BYTES = 16 << 10
MAX_CHUNKS = 2048  # parsing one takes about 10 us, all at once
BODY_BYTES_PER_S = 1024
CHECK_S = 1.0  # between checks of a body's rate
GOODBYE_S = 1.0  # for a disconnected client to read its answer


@dataclass(slots=True, kw_only=True)
class Bounds:
    """Limits and counts shared by all connections of a server."""

    headers_s: float
    body_s: float
    connections: int
    per_address: int
    metrics: ProcessMetrics
    open: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, config: ServiceConfig, metrics: ProcessMetrics) -> Bounds:
        timing, limits = config.timing, config.limits
        return cls(
            headers_s=timing.http_headers_ms / 1000,
            body_s=timing.http_body_ms / 1000,
            connections=limits.http_connections,
            per_address=limits.http_connections_per_address,
            metrics=metrics,
        )

    def refuse(self, address: str) -> str:
        """The limit that one more connection from `address` would exceed, or ""."""
        if self.open.total() >= self.connections:
            return "http_connections"
        return "http_connections_per_address" if self.open[address] >= self.per_address else ""


class BoundedProtocol(H11Protocol):
    """A connection. A late client gets 408 and is disconnected; a connection too many is closed at once."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        bounds: Bounds,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = _CountedConnection(h11.SERVER, HEADER_BYTES)
        self._bounds = bounds
        self._address: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waits_for_body = False
        self._started_s = 0.0
        self._received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if limit := self._bounds.refuse(address):
            self._bounds.metrics.limit_rejections.labels(limit).inc()
            transport.abort()
            return
        self._address = address
        self._bounds.open[address] += 1
        self._begin(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self._address is not None:
            self._bounds.open[self._address] -= 1
            self._bounds.open += Counter()  # forgets addresses without connections
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is None:  # the next request on a kept-alive connection
            self._begin(False)
        self._received += len(data)
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            if not self._waits_for_body:
                self._begin(True)
        elif state is not h11.IDLE or self._waits_for_body:
            self._stop()

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
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_late(what))
        self.transport.close()
        self.loop.call_later(GOODBYE_S, self.transport.abort)


class _CountedConnection(h11.Connection):
    """An h11 connection that refuses bodies of more than MAX_CHUNKS chunks."""

    def __init__(self, role: type[h11.SERVER], max_incomplete_event_size: int) -> None:
        super().__init__(role, max_incomplete_event_size)
        self._chunks = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = 0
        elif isinstance(event, h11.Data) and event.chunk_start:
            self._chunks += 1
            if self._chunks > MAX_CHUNKS:
                raise h11.RemoteProtocolError(f"more than {MAX_CHUNKS} chunks")
        return event


def _late(what: str) -> bytes:
    body = json.dumps(error_body("DEADLINE_EXCEEDED", f"{what} did not arrive in time")).encode()
    head = "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
