"""The robots' process: robots' own clients, separate from public requests.

Each websocket is a robot with a session at control. POST /act is a single observation, because its clients open a
connection for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from edgeflow.config.service import ServiceConfig, load_config
from edgeflow.ipc.packets import close_all, seal
from edgeflow.service.children.child import ServingChild, sealed
from edgeflow.service.children.messages import (
    ActDone,
    ActRejected,
    Certificates,
    ChildMessage,
    Drain,
    Drained,
    MetricsSnapshot,
    Models,
    RobotActed,
    RobotOpened,
    RobotRejected,
    ServiceState,
)
from edgeflow.service.children.start import ROBOTS, ChildStart
from edgeflow.service.frontends import openpi, openvla
from edgeflow.service.frontends.act import body_bytes, traced
from edgeflow.service.frontends.control import CheckedObservation, ControlView
from edgeflow.service.frontends.numpy_msgpack import ArrayCoding, pack
from edgeflow.service.frontends.observation import ClientObservation, Reader
from edgeflow.service.frontends.openpi import OpenpiConversation
from edgeflow.service.frontends.sessions import SessionsAtControl, reason_of, rows_of
from edgeflow.service.http.answers import ABORT, CALLER, application, unless_gone
from edgeflow.service.http.bodies import JSON_TYPE
from edgeflow.service.http.body_reader import BodyReader
from edgeflow.service.http.middleware import OPEN_PATHS, Hosts, PublicMiddleware
from edgeflow.service.http.protocol import SharedLimits
from edgeflow.service.http.server import HttpServer, Websockets, load_pair, server_context
from edgeflow.service.http.websocket import GOING_AWAY, POLICY_VIOLATION, BoundedWebsocket, converse, until_gone
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow.service.security.auth import CONTROL, Authenticator, Caller, networks_of
from edgeflow_client.errors import EdgeflowError, NotFound, ResourceExhausted, Unavailable
from edgeflow_client.reasons import Reason

SNAPSHOT_S = 1.0
READER_S = 30.0  # for a client to take a piece of an answer over HTTP
OTHER_BYTES = 64 << 10  # of a message besides its images: names, numbers, text
MESSAGES_HELD = 3  # per connection at most: being answered, next, and arriving
MAX_MODEL_BYTES = 1 << 20
ROLES = dict.fromkeys((*openpi.PATHS, openvla.PATH), CONTROL)


async def serve(start: ChildStart) -> int:
    """Serve until control is gone or ends this process; returns the exit code."""
    return await RobotsFront(start, load_config(start.config, {})).run()


class RobotsFront(ServingChild):
    """The process.

    Clients may connect before a model is loaded. openpi's get their metadata once it is, and look at their cameras only
    then; an observation that came before would be too old. POST /act is answered with 503.
    """

    def __init__(self, start: ChildStart, config: ServiceConfig) -> None:
        self.metrics = ProcessMetrics()
        super().__init__(start, self.metrics, {Certificates} if config.tls.cert else None)
        self._listener = start.listener
        self._config = config
        self._control = ControlView(self._link, config)
        peers = [each for front in config.frontends.dialects.values() for each in front.peers]
        self._authenticator = Authenticator(None, self.metrics, self._log, peers=peers)
        self._sessions = SessionsAtControl(self._link, config)
        self._bodies = BodyReader(body_bytes(config), "an observation")
        self._parsing = asyncio.Lock()
        self._reader = Reader(config, openvla.NAME)
        self._websockets: dict[WebSocket, Caller] = {}
        self._most_websockets = 0
        self._answering = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._model: dict[str, Any] = {}
        self._tls: ssl.SSLContext | None = None
        self._http: HttpServer | None = None

    def _serve(self) -> None:
        config, limits = self._config, self._config.limits
        bounds = SharedLimits(config, self.metrics)
        tls = (self._tls, config.timing.handshake_ms / 1000) if self._tls is not None else None
        most_bytes = limits.cameras * limits.image_bytes + OTHER_BYTES
        self._most_websockets = max((limits.robots_memory_mb << 20) * 3 // 4 // (MESSAGES_HELD * most_bytes), 1)
        websockets = Websockets(BoundedWebsocket, most_bytes)
        self._http = HttpServer(self._app(), self._listener, bounds.connect, tls, websockets)
        self._http.start()
        self._spawn(self._show_metrics())

    def _app(self) -> ASGIApp:
        config = self._config
        app = application(self._routes())
        peers = {name: networks_of(front.peers) for name, front in config.frontends.dialects.items()}
        app.add_middleware(
            PublicMiddleware,
            authenticator=self._authenticator,
            body_bytes=config.limits.http_body_bytes,
            metrics=self.metrics,
            log=self._log,
            hosts=Hosts.of(config.frontends.host, config.http.names, pages=False),
            reader_s=READER_S,
            roles=ROLES,
            peers={**dict.fromkeys(openpi.PATHS, peers[openpi.NAME]), openvla.PATH: peers[openvla.NAME]},
        )
        return app

    def _routes(self) -> list[BaseRoute]:
        async def health(_: Request) -> Response:
            """Liveness, with the answer of openpi's server."""
            live = self._control.state.live
            return PlainTextResponse("OK\n" if live else "the service does not answer\n", 200 if live else 503)

        async def clients(_: Request) -> Response:
            """List the clients that can connect here."""
            return JSONResponse(self._model.get("clients", {}))

        async def unknown(_: WebSocket) -> None:
            raise NotFound(f"no websocket here; openpi's is at {' and '.join(openpi.PATHS)}", field="path")

        return [
            *(Route(path, health, methods=["GET"]) for path in sorted(OPEN_PATHS)),
            Route("/", clients, methods=["GET"]),
            Route(openvla.PATH, self._act, methods=["POST"]),
            *(WebSocketRoute(path, self._openpi) for path in openpi.PATHS),
            WebSocketRoute("/{path:path}", unknown),
        ]

    async def _openpi(self, websocket: WebSocket) -> None:
        self._check_open()
        if len(self._websockets) >= self._most_websockets:
            text = f"{self._most_websockets} websockets are open, as many as there is memory for"
            raise ResourceExhausted(text, field="limits.robots_memory_mb", reason=Reason.QUEUE_FULL)
        caller: Caller = websocket.scope[CALLER]
        connection = self._sessions.connection(caller, lambda opened: traced(opened, websocket, self._config))
        conversation = OpenpiConversation(
            self._config,
            control=self._control,
            connection=connection,
            path=websocket.scope["path"],
            log=self._log,
            metrics=self.metrics,
            check_open=self._check_open,
        )
        self._websockets[websocket] = caller
        greeting: asyncio.Task[None] | None = None

        def slow() -> None:
            self.metrics.limit_rejections.labels("slow_reader").inc()
            websocket.scope["state"][ABORT]()

        try:
            with until_gone(websocket):
                await websocket.accept()
                greeting = asyncio.create_task(self._greet(websocket))

                async def reply(data: bytes | str | None, received_ns: int) -> bytes | str:
                    await greeting  # messages before the greeting wait for it
                    return await conversation.reply(data, received_ns)

                await converse(
                    websocket,
                    reply,
                    busy=self._busy,
                    close_reason=conversation.close_reason,
                    slow_s=self._config.timing.slow_reader_ms / 1000,
                    slow=slow,
                )
        except (WebSocketDisconnect, WebSocketDisconnected):
            pass
        finally:
            if greeting is not None:
                greeting.cancel()
                await asyncio.gather(greeting, return_exceptions=True)
            del self._websockets[websocket]
            connection.close()

    async def _greet(self, websocket: WebSocket) -> None:
        """Send the metadata once the model is loaded, because a client captures its first image after it."""
        with contextlib.suppress(Unavailable):  # the service ends before: the first answer reports it
            await self._control.loaded()
        known = openpi.metadata(self._config, self._control.inputs, self._model)
        await websocket.send_bytes(pack(known, ArrayCoding.OPENPI))

    async def _act(self, request: Request) -> Response:
        """Return the action for one observation, in the form of its dialect."""
        self._check_open()
        with self._busy(), self._rejections(openvla.NAME):
            async with self._bodies.read(request) as body:
                received_ns = time.monotonic_ns()
                seen, style = await self._parsed(body)
            opened, frame = self._reader.read(seen, self._control.needs())
            opened = traced(opened, request, self._config)
            observation = CheckedObservation(opened=opened, frame=frame, received_ns=received_ns)
            done = await unless_gone(request, self._control.act(observation, request.scope[CALLER]))
            return Response(openvla.answer(rows_of(done.action), style), media_type=JSON_TYPE)

    async def _parsed(self, body: bytes) -> tuple[ClientObservation, openvla.ActStyle]:
        """The contents of a body, one body at a time. Parsing long lists leaves half of the time to other requests."""
        async with self._parsing:
            began_s = time.monotonic()
            found = openvla.read(body)
            await asyncio.sleep(time.monotonic() - began_s)
            return found

    @contextlib.contextmanager
    def _rejections(self, front: str) -> Iterator[None]:
        """Count a request that gets no action."""
        try:
            yield
        except EdgeflowError as error:
            self.metrics.client_refusals.labels(front, reason_of(error)).inc()
            raise

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        """Count a request while it is answered."""
        self._answering += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._answering -= 1
            if not self._answering:
                self._idle.set()

    def _check_open(self) -> None:
        if self._draining:
            raise Unavailable("the service is stopping", reason=Reason.DRAINING)

    def _handle(self, message: ChildMessage, descriptors: list[int]) -> None:
        match message:
            case ServiceState():
                self._control.update_state(message)
            case RobotOpened() | RobotActed() | RobotRejected():
                self._sessions.take(message, descriptors)
            case ActDone() | ActRejected():
                self._control.take(message, descriptors)
            case Certificates():
                self._renew(descriptors)
            case Models(inputs):
                self._control.update_inputs(inputs)
                self._model = next(iter(json.loads(sealed(descriptors, MAX_MODEL_BYTES))), {})
            case Drain():
                self._draining = True
                self._spawn(self._drain())

    def _renew(self, descriptors: list[int]) -> None:
        """Use new certificates for new connections; a new client CA needs a new context, so a restart."""
        if self._tls is None:
            self._tls = server_context(descriptors)
        else:
            load_pair(self._tls, descriptors)

    def _credentials_changed(self) -> None:
        """End the connections whose token is no longer in force."""
        for websocket, caller in list(self._websockets.items()):
            if not self._authenticator.may_control(caller):
                self._spawn(_close(websocket, POLICY_VIOLATION, "the token no longer permits this"))

    async def _drain(self) -> None:
        await self._idle.wait()
        await asyncio.gather(*(_close(each, GOING_AWAY, "the service is stopping") for each in list(self._websockets)))
        if self._http is not None:
            await self._http.flush()
        self._link.send(Drained())

    async def _show_metrics(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                descriptors = [seal(self.metrics.text())]
                self._link.send(MetricsSnapshot(ROBOTS), descriptors)
                close_all(descriptors)
            await asyncio.sleep(SNAPSHOT_S)

    async def _end(self) -> None:
        if self._http is not None:
            await self._http.stop()
        self._control.close()


async def _close(websocket: WebSocket, code: int, text: str) -> None:
    with contextlib.suppress(Exception):  # the client may have left
        await websocket.close(code, text)
