"""The gateway process: public HTTP requests, separate from the robots' sessions (service/README.md)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any

import msgpack
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from edgeflow.config.sections import is_loopback
from edgeflow.config.service import ServiceConfig, load_config
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
    Operated,
    ServiceState,
    Watched,
)
from edgeflow.service.children.simulated_robot import why_no_robot
from edgeflow.service.children.start import ChildStart
from edgeflow.service.frontends.act import Observations, act_answer
from edgeflow.service.frontends.control import ControlView
from edgeflow.service.gateway.documents import document_routes
from edgeflow.service.gateway.events import GatewayMetrics, Viewers, event_routes
from edgeflow.service.gateway.operators import OperatorRequests, operator_routes
from edgeflow.service.gateway.page import page_routes
from edgeflow.service.gateway.pictures import picture_routes
from edgeflow.service.gateway.proxy import ChatSide, FairTurns, PassThrough
from edgeflow.service.http.answers import CALLER, METRICS_TYPE, application, unless_gone
from edgeflow.service.http.bodies import MSGPACK_TYPES
from edgeflow.service.http.middleware import EVENTS, MODEL, MODELS, PREFIXES, Hosts, PublicMiddleware
from edgeflow.service.http.protocol import SharedLimits
from edgeflow.service.http.server import HttpServer, load_pair, server_context
from edgeflow.service.security.auth import Caller
from edgeflow.version import __version__
from edgeflow_client.errors import NotFound, Unavailable
from edgeflow_client.reasons import Reason

POLL_S = 1.0  # between snapshots of the chat front
ANSWER_SLACK_S = 5.0  # beyond chat's own time limits
READER_S = 30.0  # for a client to take a piece of an answer
MAX_MODEL_BYTES = 1 << 20
HELP = "# HELP "
MAX_NAME = 100  # characters of a name that an answer repeats
CHAT_ROUTES = {
    "chat_completions": ("POST", "/v1/chat/completions"),
    "completions": ("POST", "/v1/completions"),
    "tokenize": ("POST", "/tokenize"),
    "prefixes": ("GET", PREFIXES),
    "set_prefix": ("PUT", f"{PREFIXES}/{{slot}}"),
    "clear_prefix": ("DELETE", f"{PREFIXES}/{{slot}}"),
}
"""Method and path by the name that the document shows."""


async def serve(start: ChildStart) -> int:
    """Serve until control is gone or ends this process; returns the exit code."""
    return await Gateway(start, load_config(start.config, {})).run()


class Gateway(ServingChild):
    """The composition. It begins to serve once control has sent the tokens in force and the certificates."""

    def __init__(self, start: ChildStart, config: ServiceConfig) -> None:
        self.draining = False
        self.metrics = GatewayMetrics()
        super().__init__(start, self.metrics, {Certificates} if config.tls.cert else None)
        self._listener = start.listener
        self._config = config
        self._control = ControlView(self._link, config)
        self.operators = OperatorRequests(self._link)
        chat = config.chat
        waits_ms = 2 * chat.queue_ms + config.timing.http_body_ms  # for the body's turn, the body, the answer's turn
        answer_s = chat.request_s + waits_ms / 1000 + ANSWER_SLACK_S
        self._chat = ChatSide(start.chat_path, answer_s) if start.chat_path else None
        self._tls: ssl.SSLContext | None = None
        self._in_flight = InFlight()
        self._texts: dict[str, str] = {}
        self._models: dict[str, list[dict[str, Any]]] = {}
        self._created_s = int(time.time())  # of all models: OpenAI's clients want a number
        self._http: HttpServer | None = None
        self.viewers = Viewers(
            self._link.send,
            self._spawn,
            self.metrics,
            stays=self._authenticator.may_observe,
            own=self._own,
            models=self._entries,
        )

    async def models(self) -> list[dict[str, Any]]:
        """The entries of /v1/models, from the last snapshots; the chat front is asked while it has shown none."""
        if self._chat is not None and not self._models.get("chat"):
            await self._ask_chat(self._chat)
        return self._entries()

    def _entries(self) -> list[dict[str, Any]]:
        entries = [*self._models.get("control", []), *self._models.get("chat", [])]
        return [{"created": self._created_s, **entry} for entry in entries]

    def metrics_text(self) -> str:
        """The metrics of all processes."""
        own = self.metrics.text().decode()
        return merge({**{name: self._texts[name] for name in sorted(self._texts)}, "gateway": own})

    def hello(self, caller: Caller) -> dict[str, Any]:
        """The part of the first event of a live page that depends on its caller."""
        known, chat = self._authenticator, self._chat is not None
        operates = known.may_operate(caller)
        may = {"operate": operates, "chat": chat and known.may_chat(caller)}
        return {
            "time": time.time_ns() // 1_000_000,
            "version": __version__,
            "may": may | {"demo": operates and not why_no_robot(self._config)},
            "tokens": known.tokens_required,
            "tls": bool(self._config.tls.cert),
        }

    def _own(self) -> dict[str, Any]:
        """The gateway's part of the description of the service: the chat queue."""
        if self._chat is None:
            return {"chat": None}
        waiting, running = (
            _sample(self._texts.get("chat", ""), f"edgeflow_chat_requests_{each}") for each in ("waiting", "running")
        )
        model = next((each["id"] for each in self._models.get("chat", [])), "")
        return {"chat": {"model": model, "queue": waiting, "most": self._config.chat.queue, "running": running}}

    def _serve(self) -> None:
        timing = self._config.timing
        bounds = SharedLimits(self._config, self.metrics)
        tls = (self._tls, timing.handshake_ms / 1000) if self._tls is not None else None
        self._http = HttpServer(self._app(), self._listener, bounds.connect, tls)
        self._http.start()
        if self._chat is not None:
            self._spawn(self._poll_chat(self._chat))

    def _app(self) -> ASGIApp:
        config = self._config
        app = build_app(config, self._control, self._chat, self)
        app.add_middleware(
            PublicMiddleware,
            authenticator=self._authenticator,
            body_bytes=config.limits.http_body_bytes,
            metrics=self.metrics,
            log=self._log,
            hosts=Hosts.of(config.http.host, config.http.names),
            reader_s=READER_S,
        )
        self._in_flight.app = app
        return self._in_flight

    def _handle(self, message: ChildMessage, descriptors: list[int]) -> None:
        match message:
            case ServiceState():
                self._control.update_state(message)
            case ActDone() | ActRejected():
                self._control.take(message, descriptors)
            case Operated():
                self.operators.take(message, descriptors)
            case Certificates():
                self._renew(descriptors)
            case MetricsSnapshot(process):
                self._texts[process] = sealed(descriptors).decode()
            case Models(inputs):
                self._control.update_inputs(inputs)
                self._models["control"] = json.loads(sealed(descriptors, MAX_MODEL_BYTES))
            case Watched():
                self.viewers.take(message, descriptors)
            case Drain():
                self.draining = True
                self.viewers.drain()
                self._spawn(self._drain())

    def _renew(self, descriptors: list[int]) -> None:
        """Use new certificates for new connections; a new client CA needs a new context, so a restart."""
        if self._tls is None:
            self._tls = server_context(descriptors)
        else:
            load_pair(self._tls, descriptors)

    async def _drain(self) -> None:
        await self._in_flight.idle.wait()
        if self._http is not None:
            await self._http.flush()
        self._link.send(Drained())

    async def _poll_chat(self, chat: ChatSide) -> None:
        """Keep the chat front's metrics and models at hand."""
        while True:
            await self._ask_chat(chat)
            await asyncio.sleep(POLL_S)

    async def _ask_chat(self, chat: ChatSide) -> None:
        """Take the chat front's metrics and models; while it does not answer, the last ones are shown."""
        with contextlib.suppress(Exception):  # whatever it is, the next poll may succeed
            text = await asyncio.wait_for(chat.get("/internal/metrics"), POLL_S)
            models = json.loads(await asyncio.wait_for(chat.get("/internal/models"), POLL_S))
            self._texts["chat"], self._models["chat"] = text.decode(), models

    async def _end(self) -> None:
        if self._http is not None:
            await self._http.stop()
        self._control.close()


class InFlight:
    """An ASGI middleware that knows whether requests are being answered, health, metrics and live pages aside."""

    PASSING = frozenset({"/live", "/ready", "/healthz", "/readyz", "/metrics", EVENTS})

    def __init__(self) -> None:
        self.app: ASGIApp | None = None
        self.idle = asyncio.Event()
        self.idle.set()
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is None:
            raise RuntimeError("no application")
        if scope["type"] != "http" or scope["path"] in self.PASSING:
            await self.app(scope, receive, send)
            return
        self._count += 1
        self.idle.clear()
        try:
            await self.app(scope, receive, send)
        finally:
            self._count -= 1
            if not self._count:
                self.idle.set()


def _sample(text: str, name: str) -> int | None:
    """The value of a sample without labels; None without it."""
    found = next((line for line in text.splitlines() if line.startswith(f"{name} ")), "")
    return round(float(found.rpartition(" ")[2])) if found else None


def merge(texts: Mapping[str, str]) -> str:
    """One text, each family once. Families of more than one process get the label `process`."""
    families: dict[str, dict[str, list[str]]] = {}
    for process, text in texts.items():
        for name, lines in _families(text).items():
            families.setdefault(name, {})[process] = lines
    return "".join(_written(of_process) for of_process in families.values())


def _families(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(HELP):
            lines = found.setdefault(line.split(" ", 3)[2], [])
        lines.append(line)
    return found


def _written(of_process: Mapping[str, list[str]]) -> str:
    if len(of_process) == 1:
        return "".join(f"{line}\n" for lines in of_process.values() for line in lines)
    first = next(iter(of_process.values()))
    head = [line for line in first if line.startswith("#")]
    samples = [
        _labelled(line, process) for process, lines in of_process.items() for line in lines if not line.startswith("#")
    ]
    return "".join(f"{line}\n" for line in (*head, *samples))


def _labelled(line: str, process: str) -> str:
    """A sample with one more label."""
    brace, space = line.find("{"), line.find(" ")
    if 0 <= brace < space:
        return f'{line[: brace + 1]}process="{process}",{line[brace + 1 :]}'
    return f'{line[:space]}{{process="{process}"}}{line[space:]}'


def build_app(config: ServiceConfig, control: ControlView, chat: ChatSide | None, shown: Gateway) -> Starlette:
    """Build the application. Documentation pages are served on loopback only."""
    routes = [*_act(Observations(config), control, shown), *_state(control, shown), *_chat(chat, shown)]
    routes += event_routes(lambda: shown.viewers, lambda caller: shown.hello(caller))
    routes += picture_routes(lambda: shown.viewers)
    routes += operator_routes(lambda: shown.operators)
    documents = document_routes(routes) if is_loopback(config.http.host) else []
    return application([*routes, *page_routes(documents=bool(documents)), *documents])


def _act(observations: Observations, control: ControlView, shown: Gateway) -> list[Route]:
    async def act(request: Request) -> Response:
        """Return the action for one observation."""
        _check_open(shown)
        seen = await observations.read(request, control.needs())
        answer = act_answer(await unless_gone(request, control.act(seen, request.scope[CALLER])))
        if request.headers.get("content-type", "").startswith(MSGPACK_TYPES):
            return Response(msgpack.packb(answer), media_type=MSGPACK_TYPES[0])
        return JSONResponse(answer)

    return [Route("/v1/act", act, methods=["POST"])]


def _state(control: ControlView, shown: Gateway) -> list[Route]:
    async def healthz(_: Request) -> Response:
        """Liveness: 503 means that the process should be restarted."""
        state = control.state
        return JSONResponse({"state": state.state}, 200 if state.live else 503)

    async def readyz(_: Request) -> Response:
        """Readiness: 200 means that a session opened now gets actions."""
        state = control.state
        return JSONResponse({"state": state.state}, 200 if state.ready else 503)

    async def show_metrics(_: Request) -> Response:
        """Metrics of all processes in the Prometheus text format, at most a second or two old."""
        return PlainTextResponse(shown.metrics_text(), headers={"content-type": METRICS_TYPE})

    async def models(_: Request) -> Response:
        """List the policy and, where chat is served, the chat model under each of its names."""
        return JSONResponse({"object": "list", "data": await shown.models()})

    async def model(request: Request) -> Response:
        """Describe one model: an entry of the list."""
        entries = {entry["id"]: entry for entry in await shown.models()}
        name = request.path_params["name"]
        if name not in entries:
            known = ", ".join(entries) or "none yet"
            raise NotFound(f"unknown model {name[:MAX_NAME]!r}; known: {known}", field="model")
        return JSONResponse(entries[name])

    checks = {"/live": healthz, "/healthz": healthz, "/ready": readyz, "/readyz": readyz}
    return [
        *(Route(path, handler, methods=["GET"]) for path, handler in checks.items()),
        Route("/metrics", show_metrics, methods=["GET"]),
        Route(MODELS, models, methods=["GET"]),
        Route(MODEL, model, methods=["GET"]),
    ]


def _chat(chat: ChatSide | None, shown: Gateway) -> list[Route]:
    pace = FairTurns()

    async def passed(_: Request) -> Response:
        _check_open(shown)
        if chat is None:
            raise Unavailable("no chat model is configured", reason=Reason.NO_CHAT)
        return PassThrough(chat, pace)

    return [Route(path, passed, methods=[method], name=name) for name, (method, path) in CHAT_ROUTES.items()]


def _check_open(shown: Gateway) -> None:
    if shown.draining:
        raise Unavailable("the service is stopping", reason=Reason.DRAINING)
