"""The HTTP server of the gateway, the robots' process and the chat front, on a bound socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from edgeflow.service.http.protocol import Connection
from edgeflow_client.errors import WorkerError

FLUSH_S = 1.0  # for answers to leave at the end
FLUSH_CHECK_S = 0.01
PING_S = 10.0  # between pings of a websocket, and for its answer: one whose client is gone ends within twice this
ServerTls: TypeAlias = tuple[ssl.SSLContext, float]  # and how many seconds a handshake may take
Connect: TypeAlias = Callable[[uvicorn.Config, ServerState], Connection]


def quiet_settings(app: ASGIApp, websockets: Websockets | None = None) -> uvicorn.Config:
    """Settings without logs, which would repeat what clients send, and without trust in a proxy's headers."""
    upgraded: dict[str, Any] = {"ws": "none"}
    if websockets is not None:
        upgraded = {
            "ws": websockets.protocol,
            "ws_max_size": websockets.most_bytes,
            "ws_ping_interval": PING_S,
            "ws_ping_timeout": PING_S,
            "ws_per_message_deflate": False,
        }
    logging.getLogger("uvicorn").addHandler(logging.NullHandler())
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        **upgraded,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )


def plain(config: uvicorn.Config, state: ServerState) -> Connection:
    """A connection without limits, for callers that are trusted."""
    return Connection(config, state, {})


@dataclass(frozen=True, slots=True)
class Websockets:
    """Settings of a server whose connections may become websockets."""

    protocol: type[asyncio.Protocol]
    """The class of these connections."""
    most_bytes: int
    """The most bytes of a message."""


class _UvicornServer(uvicorn.Server):
    """A uvicorn server that leaves signals to others, on a bound socket of any family."""

    def __init__(self, settings: uvicorn.Config, connect: Connect, tls: ServerTls | None) -> None:
        super().__init__(settings)
        self._connect = connect
        self._tls = dict(zip(("ssl", "ssl_handshake_timeout"), tls or (), strict=False))

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
            self.servers.append(await create(self._connection, sock=sock, backlog=self.config.backlog, **self._tls))
        self.started = True

    def _connection(self) -> Connection:
        return self._connect(self.config, self.server_state)


class HttpServer:
    """Serves an application between `start` and `stop`. sock: bound. connect: creates connections."""

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        connect: Connect = plain,
        tls: ServerTls | None = None,
        websockets: Websockets | None = None,
    ) -> None:
        self._server = _UvicornServer(quiet_settings(app, websockets), connect, tls)
        self._socket = sock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start serving."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="http")

    async def flush(self) -> None:
        """Wait until answers have left this process, at most FLUSH_S."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + FLUSH_S
        while self._answering and loop.time() < until_s:
            await asyncio.sleep(FLUSH_CHECK_S)

    async def stop(self) -> None:
        """Finish running requests, then close."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
        self._socket.close()

    @property
    def _answering(self) -> bool:
        connections = self._server.server_state.connections
        return any(getattr(each, "answering", False) for each in connections)


def server_context(descriptors: Sequence[int]) -> ssl.SSLContext:
    """The context for a certificate chain, its key and, as a third, the CA of client certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_pair(context, descriptors)
    if len(descriptors) > 2:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(_path(descriptors[2]))
    return context


def load_pair(context: ssl.SSLContext, descriptors: Sequence[int]) -> None:
    """Use a certificate chain and key for new connections."""
    if len(descriptors) < 2:
        raise WorkerError("certificates lack a descriptor")
    context.load_cert_chain(_path(descriptors[0]), _path(descriptors[1]))


def _path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"
