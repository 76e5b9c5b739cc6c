"""The HTTP server: single actions, health, metrics, models, chat."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Generator
from typing import Any

import msgpack
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from edgeflow import __version__
from edgeflow.config import ServiceConfig, is_loopback
from edgeflow.service.chat.prefixes import add_prefixes
from edgeflow.service.chat.routes import ChatFront, add_chat
from edgeflow.service.grpc.codec import check_act
from edgeflow.service.host.listen import bind
from edgeflow.service.http.act import act_answer, act_request, parse_body
from edgeflow.service.http.bodies import MSGPACK_TYPES
from edgeflow.service.http.edge import CALLER, Edge, error_of_status
from edgeflow.service.http.hosts import Hosts
from edgeflow.service.http.protocol import BoundedProtocol, Bounds
from edgeflow.service.http.schema import ACT_BODY, ACT_FAILURES, CHECK_FAILED, ActAnswer, ModelsAnswer, StateAnswer
from edgeflow.service.observe.health import Health
from edgeflow.service.observe.log import EventLog
from edgeflow.service.observe.metrics import Metrics
from edgeflow.service.security.auth import Guard
from edgeflow.service.security.tls import Tls
from edgeflow.service.sessions.act import act_once
from edgeflow.service.sessions.plane import ControlPlane

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build_app(
    config: ServiceConfig,
    *,
    plane: ControlPlane,
    chat: ChatFront,
    guard: Guard,
    health: Health,
    metrics: Metrics,
    log: EventLog,
) -> FastAPI:
    """Build the application. Documentation pages are served on loopback only."""
    docs = "/docs" if is_loopback(config.http.host) else None
    openapi = "/openapi.json" if docs else None
    app = FastAPI(title="edgeflow", version=__version__, docs_url=docs, redoc_url=None, openapi_url=openapi)
    app.router.redirect_slashes = False  # a redirect would repeat the Host header
    app.add_exception_handler(HTTPException, _framework_error)
    _add_act(app, plane)
    _add_state(app, config, plane=plane, chat=chat, health=health, metrics=metrics)
    add_chat(app, chat)
    add_prefixes(app, chat)
    limit, hosts = config.limits.http_body_bytes, Hosts.of(config.http)
    app.add_middleware(Edge, guard=guard, body_bytes=limit, metrics=metrics, log=log, hosts=hosts)
    return app


def _add_act(app: FastAPI, plane: ControlPlane) -> None:
    @app.post("/v1/act", response_model=ActAnswer, responses=ACT_FAILURES, openapi_extra=ACT_BODY)
    async def act(request: Request) -> Response:
        """Return the action for one observation."""
        content_type = request.headers.get("content-type", "")
        body = parse_body(content_type, await request.body())
        opened, frame = check_act(act_request(body), plane.config.alias, plane.config.limits)
        answer = act_answer(*await act_once(plane, opened, frame, request.scope[CALLER]))
        if content_type.startswith(MSGPACK_TYPES):
            return Response(msgpack.packb(answer), media_type=MSGPACK_TYPES[0])
        return JSONResponse(answer)


def _add_state(
    app: FastAPI, config: ServiceConfig, *, plane: ControlPlane, chat: ChatFront, health: Health, metrics: Metrics
) -> None:
    @app.get("/live", response_model=StateAnswer, responses=CHECK_FAILED)
    @app.get("/healthz", response_model=StateAnswer, responses=CHECK_FAILED)
    async def healthz() -> JSONResponse:
        """Liveness: 503 means that the process should be restarted."""
        return JSONResponse({"state": health.state.value}, 200 if health.live else 503)

    @app.get("/ready", response_model=StateAnswer, responses=CHECK_FAILED)
    @app.get("/readyz", response_model=StateAnswer, responses=CHECK_FAILED)
    async def readyz() -> JSONResponse:
        """Readiness: 200 means that a session opened now gets actions."""
        return JSONResponse({"state": health.state.value}, 200 if health.ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def show_metrics() -> Response:
        """Metrics in the Prometheus text format."""
        return Response(metrics.text(), media_type=METRICS_TYPE)

    @app.get("/v1/models", response_model=ModelsAnswer)
    async def models() -> JSONResponse:
        """List the policy and, where chat is served, the chat model under each of its names."""
        return JSONResponse({"object": "list", "data": [_model(config, plane), *chat.models]})


def _model(config: ServiceConfig, plane: ControlPlane) -> dict[str, Any]:
    model: dict[str, Any] = {"id": config.alias, "object": "model", "owned_by": "edgeflow"}
    if plane.worker is not None:
        model["fingerprint"] = plane.worker.model_fingerprint
        model["action_tokens"] = plane.worker.action_tokens
        model["unnorm_keys"] = plane.worker.unnorm_keys
        model["mode"] = config.mode
    return model


async def _framework_error(_: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = str(error.detail) if isinstance(error, HTTPException) else "internal error"
    headers = error.headers if isinstance(error, HTTPException) else None
    return JSONResponse(error_of_status(status, detail), status, headers)


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the service and limits the time of handshakes."""

    def __init__(self, settings: uvicorn.Config, bounds: Bounds, tls: Tls | None, handshake_s: float) -> None:
        super().__init__(settings)
        self._bounds = bounds
        self._tls = tls
        self._handshake_s = handshake_s

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving on bound sockets, like the library's own method."""
        context = self._tls.context if self._tls else None
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
    """The HTTP server, bound on construction; serves between `start` and `stop`."""

    def __init__(self, config: ServiceConfig, tls: Tls | None, metrics: Metrics) -> None:
        self._socket = bind("http.port", config.http.host, config.http.port)
        self._bounds = Bounds.of(config, metrics)
        self._handshake_s = config.timing.handshake_ms / 1000
        self._tls = tls
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    async def start(self, app: FastAPI) -> None:
        """Start serving."""
        logging.getLogger("uvicorn").addHandler(logging.NullHandler())  # it would write client input to stderr
        settings = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            lifespan="off",
            server_header=False,
            ws="none",
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(settings, self._bounds, self._tls, self._handshake_s)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="http")

    async def stop(self) -> None:
        """Finish running requests, then close."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
        self._socket.close()
