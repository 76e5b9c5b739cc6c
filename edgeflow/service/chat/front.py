"""The chat front process: bodies, templates, pictures and answers of chat. It may be killed at any time."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Coroutine
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgeflow.clock import MonotonicClock
from edgeflow.config import ServiceConfig, load_config
from edgeflow.errors import StartError, WorkerError
from edgeflow.ipc.packets import close_all
from edgeflow.ipc.sealed import read_sealed, seal
from edgeflow.service.chat.desk import ChatDesk
from edgeflow.service.chat.link import ChatPort
from edgeflow.service.chat.prefixes import prefix_routes, restore
from edgeflow.service.chat.routes import ChatFront, chat_routes
from edgeflow.service.children.child import ControlLink
from edgeflow.service.children.log import ChildLog
from edgeflow.service.children.messages import ChatSocket, ChildFailed, Drain, Drained, Keep, Kept, Policy, Serving
from edgeflow.service.children.roles import ChildStart
from edgeflow.service.http.edge import framework_error
from edgeflow.service.http.inner import InnerEdge, InnerServer
from edgeflow.service.observe.chat_metrics import ChatMetrics
from edgeflow.service.security.auth import Guard, read_entries

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_KEPT_BYTES = 1 << 20
MAX_SEALED_BYTES = 4 << 20
TOKENS_S = 1.0  # between checks for requests whose token has expired
LAG_S = 0.05  # between beats of the loop's own timer


async def serve(start: ChildStart) -> int:
    """Serve until control is gone or ends this process; returns the exit code."""
    return await ChatProcess(start, load_config(start.config, {})).run()


class ChatProcess:
    """The composition. It begins to serve once the tokenizer is loaded and control has sent the tokens in force."""

    def __init__(self, start: ChildStart, config: ServiceConfig) -> None:
        clock = MonotonicClock()
        self.metrics = ChatMetrics()
        self._link = ControlLink(start.control, self._receive, self.close)
        log = ChildLog(self._link)
        self._guard = Guard(None, self.metrics, log)
        self._port = ChatPort()
        self.desk = ChatDesk(config.chat, self._port, clock, self.metrics, log)
        self._port.listen(self.desk)
        self.front = ChatFront(config, self.desk, clock, self.metrics, self._keep)
        app = build_chat_app(self.front, self.metrics)
        app.add_middleware(InnerEdge, log=log, reader_s=config.chat.request_s)
        self._http = InnerServer(app, start.listener)
        self._log = log
        self._known = asyncio.Event()  # the tokens in force
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Serve until control is gone or `close` is called; returns the exit code."""
        self.metrics.open()
        try:
            await self.front.load()
            self._link.start()  # messages wait for the tokenizer
            await self._known.wait()
            if not self._over.is_set():
                await self._serve()
            return 0
        except StartError as error:
            self._link.send(ChildFailed(type(error).__name__, error.text))
            return 2
        finally:
            await self._release()

    def close(self) -> None:
        """End `run`."""
        self._known.set()
        self._over.set()

    async def _serve(self) -> None:
        gc.collect()
        gc.freeze()
        self._http.start()
        self._spawn(self._end_expired())
        self._spawn(self._measure_lag())
        self._link.send(Serving())
        await self._over.wait()

    def _receive(self, message: Any, descriptors: list[int]) -> None:
        try:
            self._handle(message, descriptors)
        finally:
            close_all(descriptors)

    def _handle(self, message: Any, descriptors: list[int]) -> None:
        match message:
            case Policy():
                data = _sealed(descriptors, MAX_SEALED_BYTES)
                self._guard.replace(read_entries(data) if message.asks else None)
                self.desk.end_callers(self._guard.may_chat)
                self._known.set()
            case Kept():
                restore(self.front, message.key, _sealed(descriptors, MAX_KEPT_BYTES))
            case ChatSocket():
                if len(descriptors) != 1:
                    raise WorkerError("a message lacks its descriptor")
                self._port.attach(socket.socket(fileno=descriptors.pop()))
            case Drain():
                self._spawn(self._drain(message.deadline_ms))

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

    async def _end_expired(self) -> None:
        while True:
            await asyncio.sleep(TOKENS_S)
            self.desk.end_callers(self._guard.may_chat)

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + LAG_S, loop.time() - LAG_S)
            await asyncio.sleep(due - loop.time())
            self.metrics.loop_lag.observe(max(0.0, loop.time() - due))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _release(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.stop()
        await self._port.close()
        self._link.close()
        self.metrics.close()


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


def _sealed(descriptors: list[int], most: int) -> bytes:
    """The sealed data of a message that has one descriptor."""
    if len(descriptors) != 1:
        raise WorkerError("a message lacks its descriptor")
    return read_sealed(descriptors[0], most)
