"""An HTTP server on a bound socket, with limits; used by the gateway and the chat front."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp

from edgeflow.service.http.protocol import BoundedProtocol, Bounds
from edgeflow.service.http.settings import quiet_settings

FLUSH_S = 1.0  # for answers to leave at the end


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the service and limits the time of handshakes."""

    def __init__(
        self, settings: uvicorn.Config, bounds: Bounds, tls: ssl.SSLContext | None, handshake_s: float
    ) -> None:
        super().__init__(settings)
        self._bounds = bounds
        self._tls = tls
        self._handshake_s = handshake_s

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving on bound sockets, like the library's own method."""
        context = self._tls
        self.servers = [
            await asyncio.get_running_loop().create_server(
                self._connection,
                sock=sock,
                ssl=context,
                ssl_handshake_timeout=self._handshake_s if context else None,
                backlog=self.config.backlog,
            )
            for sock in sockets or []
        ]
        self.started = True

    def _connection(self) -> BoundedProtocol:
        return BoundedProtocol(self.config, self.server_state, {}, bounds=self._bounds)


class HttpServer:
    """Serves between `start` and `stop`. sock: bound, and listening. tls: of the server; None = plain."""

    def __init__(
        self, sock: socket.socket, bounds: Bounds, tls: ssl.SSLContext | None = None, handshake_s: float = 2.0
    ) -> None:
        self._socket = sock
        self._bounds = bounds
        self._tls = tls
        self._handshake_s = handshake_s
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, app: ASGIApp) -> None:
        """Start serving."""
        settings = quiet_settings(app)
        self._server = _Server(settings, self._bounds, self._tls, self._handshake_s)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="http")

    async def flush(self) -> None:
        """Wait until answers have left this process, at most FLUSH_S."""
        deadline_s = asyncio.get_running_loop().time() + FLUSH_S
        while self._unsent() and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Finish running requests, then close."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
        self._socket.close()

    def _unsent(self) -> bool:
        connections = self._server.server_state.connections if self._server is not None else set()
        transports = [getattr(each, "transport", None) for each in connections]
        return any(each is not None and each.get_write_buffer_size() for each in transports)
