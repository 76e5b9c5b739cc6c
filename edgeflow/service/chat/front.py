"""The chat front process: bodies, templates, pictures and answers of chat. It may be killed at any time."""

from __future__ import annotations

import asyncio
import gc
import socket

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgeflow.config.service import ServiceConfig, load_config
from edgeflow.ipc.packets import close_all
from edgeflow.ipc.sealed import seal
from edgeflow.service.chat.desk import ChatDesk
from edgeflow.service.chat.link import ChatPort
from edgeflow.service.chat.prefixes import prefix_routes, restore
from edgeflow.service.chat.routes import ChatFront, chat_routes
from edgeflow.service.children.child import ServingChild, sealed
from edgeflow.service.children.launch import ChildStart
from edgeflow.service.children.messages import ChatSocket, ChildMessage, Drain, Drained, Keep, Kept, WantSocket
from edgeflow.service.http.errors import framework_error
from edgeflow.service.http.inner import InnerEdge
from edgeflow.service.http.server import HttpServer
from edgeflow.service.observe.process_metrics import ChatMetrics
from edgeflow_client.clock import MonotonicClock
from edgeflow_client.errors import WorkerError

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_KEPT_BYTES = 1 << 20
CHECK_S = 1.0


async def serve(start: ChildStart) -> int:
    """Serve until control is gone or ends this process; returns the exit code."""
    return await ChatProcess(start, load_config(start.config, {})).run()


class ChatProcess(ServingChild):
    """The composition. It begins to serve once the tokenizer is loaded and control has sent the tokens in force."""

    def __init__(self, start: ChildStart, config: ServiceConfig) -> None:
        clock = MonotonicClock()
        self.metrics = ChatMetrics()
        super().__init__(start, self.metrics)
        self._port = ChatPort()
        self.desk = ChatDesk(config.chat, self._port, clock, self.metrics, self._log)
        self._port.listen(self.desk)
        self.front = ChatFront(config, self.desk, clock, self.metrics, self._keep)
        app = build_chat_app(self.front, self.metrics)
        app.add_middleware(InnerEdge, log=self._log, reader_s=config.chat.request_s)
        self._http = HttpServer(app, start.listener)

    async def _load(self) -> None:
        await self.front.load()

    def _serve(self) -> None:
        gc.collect()
        gc.freeze()
        self._http.start()
        self._spawn(self._check())

    def _handle(self, message: ChildMessage, descriptors: list[int]) -> None:
        match message:
            case Kept():
                restore(self.front, message.key, sealed(descriptors, MAX_KEPT_BYTES))
            case ChatSocket():
                if len(descriptors) != 1:
                    raise WorkerError("a message lacks its descriptor")
                self._port.attach(socket.socket(fileno=descriptors.pop()))
            case Drain():
                self._spawn(self._drain(message.deadline_ms))

    def _credentials_changed(self) -> None:
        self.desk.end_callers(self._guard.may_chat)

    def _keep(self, key: str, data: bytes) -> None:
        """Have control keep data for the next chat front; what it cannot take is lost with this process."""
        kept = False
        if len(data) <= MAX_KEPT_BYTES:
            descriptor = seal(data)
            kept = self._link.send(Keep(key), [descriptor])
            close_all([descriptor])
        if not kept:
            self._log.event("prefix_not_kept", slot=key)

    async def _drain(self, deadline_ms: int) -> None:
        """Refuse new and waiting requests, finish the running one and wait until the answers have left."""
        self.desk.drain()
        await self.desk.finish(deadline_ms)
        await self._http.flush()
        self._link.send(Drained())

    async def _check(self) -> None:
        """End the requests of expired tokens; ask for a socket where the last one was lost."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.desk.end_callers(self._guard.may_chat)
            if not self._port.attached:
                self._link.send(WantSocket())

    async def _end(self) -> None:
        await self._http.stop()
        self._port.close()


def build_chat_app(front: ChatFront, metrics: ChatMetrics) -> Starlette:
    """Build the application; the documentation pages are the gateway's."""

    async def show_metrics(_: Request) -> Response:
        """Return the metrics of this process in the Prometheus text format."""
        return Response(metrics.text(), media_type=METRICS_TYPE)

    async def models(_: Request) -> Response:
        """Return chat's entries in the list of models."""
        return JSONResponse(front.models)

    internal = [Route("/internal/metrics", show_metrics), Route("/internal/models", models)]
    routes = [*chat_routes(front), *prefix_routes(front), *internal]
    app = Starlette(routes=routes, exception_handlers={HTTPException: framework_error})
    app.router.redirect_slashes = False
    return app
