"""The routes of the gateway: single actions, health, metrics, models, and chat's routes, which pass on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

import msgpack
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from edgeflow.config.sections import is_loopback
from edgeflow.config.service import ServiceConfig
from edgeflow.service.children.messages import ActDone
from edgeflow.service.gateway.acting import Observations, act_answer
from edgeflow.service.gateway.control import Control
from edgeflow.service.gateway.proxy import ChatSide, Pace, PassThrough
from edgeflow.service.http.answers import CALLER
from edgeflow.service.http.bodies import MSGPACK_TYPES
from edgeflow.service.http.errors import framework_error
from edgeflow_client.errors import NotFound, Unavailable
from edgeflow_client.reasons import Reason

TITLE = "edgeflow"
DOCS, OPENAPI = "/docs", "/openapi.json"
PAGE_PARTS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
"""Script, style and icon of the page at DOCS, with their media types."""
MODEL = "/v1/models/{name:path}"  # names have slashes
PREFIXES = "/admin/v1/prefixes"
MAX_NAME = 100  # characters of a name that an answer repeats
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route. The handler's name and text are those of the OpenAPI document."""

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]


class Snapshots(Protocol):
    """The last snapshots of the other processes."""

    draining: bool

    async def models(self) -> list[dict[str, Any]]: ...

    def metrics_text(self) -> str: ...


def build_app(config: ServiceConfig, control: Control, chat: ChatSide | None, shown: Snapshots) -> Starlette:
    """Build the application. Documentation pages are served on loopback only."""
    endpoints = [*_act(Observations(config), control, shown), *_state(control, shown), *_chat(chat, shown)]
    documents = _documents(endpoints) if is_loopback(config.http.host) else []
    routes = [Route(each.path, each.handler, methods=[each.method]) for each in (*endpoints, *documents)]
    app = Starlette(routes=routes, exception_handlers={HTTPException: framework_error})
    app.router.redirect_slashes = False  # a redirect would repeat the Host header
    return app


def _act(observations: Observations, control: Control, shown: Snapshots) -> list[Endpoint]:
    async def act(request: Request) -> Response:
        """Return the action for one observation."""
        _check_open(shown)
        seen = await observations.read(request, control.needs())
        answer = act_answer(await _unless_gone(request, control.act(seen, request.scope[CALLER])))
        if request.headers.get("content-type", "").startswith(MSGPACK_TYPES):
            return Response(msgpack.packb(answer), media_type=MSGPACK_TYPES[0])
        return JSONResponse(answer)

    return [Endpoint("POST", "/v1/act", act)]


def _state(control: Control, shown: Snapshots) -> list[Endpoint]:
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
        *(Endpoint("GET", path, handler) for path, handler in checks.items()),
        Endpoint("GET", "/metrics", show_metrics),
        Endpoint("GET", "/v1/models", models),
        Endpoint("GET", MODEL, model),
    ]


def _chat(chat: ChatSide | None, shown: Snapshots) -> list[Endpoint]:
    pace = Pace()

    def passed() -> Response:
        _check_open(shown)
        if chat is None:
            raise Unavailable("no chat model is configured", reason=Reason.NO_CHAT)
        return PassThrough(chat, pace)

    async def chat_completions(_: Request) -> Response:
        """Answer a conversation; with `stream`, as server-sent events."""
        return passed()

    async def completions(_: Request) -> Response:
        """Continue a text; with `stream`, as server-sent events."""
        return passed()

    async def tokenize(_: Request) -> Response:
        """Return the token ids of a text, or of messages after the chat template."""
        return passed()

    async def prefixes(_: Request) -> Response:
        """List the fixed prefix of every declared slot."""
        return passed()

    async def set_prefix(_: Request) -> Response:
        """Replace the prefix of a declared slot. Returns once the new one is in use; the old one serves until then."""
        return passed()

    async def clear_prefix(_: Request) -> Response:
        """Remove the prefix of a slot."""
        return passed()

    return [
        Endpoint("POST", "/v1/chat/completions", chat_completions),
        Endpoint("POST", "/v1/completions", completions),
        Endpoint("POST", "/tokenize", tokenize),
        Endpoint("GET", PREFIXES, prefixes),
        Endpoint("PUT", f"{PREFIXES}/{{slot}}", set_prefix),
        Endpoint("DELETE", f"{PREFIXES}/{{slot}}", clear_prefix),
    ]


def _documents(endpoints: list[Endpoint]) -> list[Endpoint]:
    """The routes of the OpenAPI document, which a thread makes at the first request."""

    def made() -> dict[str, Any]:
        from edgeflow.service.gateway import documents  # a second of work that serving does not need

        return documents.document(endpoints)

    def shown() -> bytes:
        from edgeflow.service.gateway import documents

        return documents.page()

    async def openapi(_: Request) -> Response:
        """Return the OpenAPI document."""
        return JSONResponse(await asyncio.to_thread(made))

    async def docs(_: Request) -> Response:
        """Show the OpenAPI document."""
        return HTMLResponse(await asyncio.to_thread(shown))

    async def part(request: Request) -> Response:
        """Send a file that the page loads."""
        from edgeflow.service.gateway import documents

        name = request.url.path.rpartition("/")[2]
        return Response(await asyncio.to_thread(documents.page_part, name), media_type=PAGE_PARTS[name])

    parts = [Endpoint("GET", f"{DOCS}/{name}", part) for name in PAGE_PARTS]
    return [Endpoint("GET", OPENAPI, openapi), Endpoint("GET", DOCS, docs), *parts]


async def _unless_gone(request: Request, answering: Coroutine[Any, Any, ActDone]) -> ActDone:
    """The answer to a request whose body was read; cancelled once its client leaves."""
    answer, gone = asyncio.create_task(answering), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        for task in (answer, gone):
            task.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _check_open(shown: Snapshots) -> None:
    if shown.draining:
        raise Unavailable("the service is stopping", reason=Reason.DRAINING)
