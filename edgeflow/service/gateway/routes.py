"""The routes of the gateway: single actions, health, metrics, models, and chat's routes, which pass on."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgpack
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from edgeflow.config.sections import is_loopback
from edgeflow.config.service import ServiceConfig
from edgeflow.service.gateway.acting import Observations, act_answer
from edgeflow.service.gateway.control import Control
from edgeflow.service.gateway.proxy import ChatSide, Pace, PassThrough
from edgeflow.service.http.answers import CALLER, METRICS_TYPE, application, unless_gone
from edgeflow.service.http.bodies import MSGPACK_TYPES
from edgeflow.service.http.middleware import DOCS, MODEL, MODELS, OPENAPI, PAGE_PARTS, PREFIXES
from edgeflow_client.errors import NotFound, Unavailable
from edgeflow_client.reasons import Reason

MAX_NAME = 100  # characters of a name that an answer repeats


class Snapshots(Protocol):
    """The last snapshots of the other processes."""

    draining: bool

    async def models(self) -> list[dict[str, Any]]: ...

    def metrics_text(self) -> str: ...


def build_app(config: ServiceConfig, control: Control, chat: ChatSide | None, shown: Snapshots) -> Starlette:
    """Build the application. Documentation pages are served on loopback only."""
    routes = [*_act(Observations(config), control, shown), *_state(control, shown), *_chat(chat, shown)]
    return application([*routes, *(_documents(routes) if is_loopback(config.http.host) else [])])


def _act(observations: Observations, control: Control, shown: Snapshots) -> list[Route]:
    async def act(request: Request) -> Response:
        """Return the action for one observation."""
        _check_open(shown)
        seen = await observations.read(request, control.needs())
        answer = act_answer(await unless_gone(request, control.act(seen, request.scope[CALLER])))
        if request.headers.get("content-type", "").startswith(MSGPACK_TYPES):
            return Response(msgpack.packb(answer), media_type=MSGPACK_TYPES[0])
        return JSONResponse(answer)

    return [Route("/v1/act", act, methods=["POST"])]


def _state(control: Control, shown: Snapshots) -> list[Route]:
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


def _chat(chat: ChatSide | None, shown: Snapshots) -> list[Route]:
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
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route(PREFIXES, prefixes, methods=["GET"]),
        Route(f"{PREFIXES}/{{slot}}", set_prefix, methods=["PUT"]),
        Route(f"{PREFIXES}/{{slot}}", clear_prefix, methods=["DELETE"]),
    ]


def _documents(routes: list[Route]) -> list[Route]:
    """The routes of the OpenAPI document, which a thread makes at the first request."""

    def made() -> dict[str, Any]:
        from edgeflow.service.gateway import openapi  # a second of work that serving does not need

        return openapi.document(routes)

    def shown() -> bytes:
        from edgeflow.service.gateway import openapi

        return openapi.page()

    async def document(_: Request) -> Response:
        """Return the OpenAPI document."""
        return JSONResponse(await asyncio.to_thread(made))

    async def docs(_: Request) -> Response:
        """Show the OpenAPI document."""
        return HTMLResponse(await asyncio.to_thread(shown))

    async def part(request: Request) -> Response:
        """Send a file that the page loads."""
        from edgeflow.service.gateway import openapi

        name = request.url.path.rpartition("/")[2]
        return Response(await asyncio.to_thread(openapi.page_part, name), media_type=PAGE_PARTS[name])

    parts = [Route(f"{DOCS}/{name}", part, methods=["GET"]) for name in PAGE_PARTS]
    return [Route(OPENAPI, document, methods=["GET"]), Route(DOCS, docs, methods=["GET"]), *parts]


def _check_open(shown: Snapshots) -> None:
    if shown.draining:
        raise Unavailable("the service is stopping", reason=Reason.DRAINING)
