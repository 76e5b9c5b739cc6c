"""The routes of the gateway: single actions, health, metrics, models, and chat's routes, which pass on."""

from __future__ import annotations

from typing import Any, Protocol

import msgpack
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from edgeflow import __version__
from edgeflow.config import ServiceConfig, is_loopback
from edgeflow.errors import Unavailable
from edgeflow.reasons import Reason
from edgeflow.service.chat import shapes
from edgeflow.service.chat.body import PREFIXES, ChatBody, CompletionBody, PrefixBody, TokenizeBody
from edgeflow.service.gateway.acting import Observations, act_answer
from edgeflow.service.gateway.control import Control
from edgeflow.service.gateway.proxy import ChatSide, Passed
from edgeflow.service.http.bodies import MSGPACK_TYPES
from edgeflow.service.http.edge import CALLER, error_of_status
from edgeflow.service.http.schema import (
    ACT_BODY,
    ACT_FAILURES,
    CHECK_FAILED,
    ActAnswer,
    ModelsAnswer,
    StateAnswer,
)

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Shown(Protocol):
    """What the gateway shows of the other processes, from their last snapshots."""

    draining: bool

    @property
    def models(self) -> list[dict[str, Any]]: ...

    def metrics_text(self) -> str: ...


def build_app(config: ServiceConfig, control: Control, chat: ChatSide | None, shown: Shown) -> FastAPI:
    """Build the application. Documentation pages are served on loopback only."""
    docs = "/docs" if is_loopback(config.http.host) else None
    openapi = "/openapi.json" if docs else None
    app = FastAPI(
        title="edgeflow",
        version=__version__,
        docs_url=docs,
        redoc_url=None,
        openapi_url=openapi,
        redirect_slashes=False,
    )
    app.add_exception_handler(HTTPException, _framework_error)
    _add_act(app, Observations(config), control, shown)
    _add_state(app, control, shown)
    _add_chat(app, chat, shown)
    return app


def _add_act(app: FastAPI, observations: Observations, control: Control, shown: Shown) -> None:
    @app.post("/v1/act", response_model=ActAnswer, responses=ACT_FAILURES, openapi_extra=ACT_BODY)
    async def act(request: Request) -> Response:
        """Return the action for one observation."""
        _check_open(shown)
        seen = await observations.read(request)
        answer = act_answer(await control.act(seen, request.scope[CALLER]))
        if request.headers.get("content-type", "").startswith(MSGPACK_TYPES):
            return Response(msgpack.packb(answer), media_type=MSGPACK_TYPES[0])
        return JSONResponse(answer)


def _add_state(app: FastAPI, control: Control, shown: Shown) -> None:
    @app.get("/live", response_model=StateAnswer, responses=CHECK_FAILED)
    @app.get("/healthz", response_model=StateAnswer, responses=CHECK_FAILED)
    async def healthz() -> JSONResponse:
        """Liveness: 503 means that the process should be restarted."""
        state = control.state
        return JSONResponse({"state": state.state}, 200 if state.live else 503)

    @app.get("/ready", response_model=StateAnswer, responses=CHECK_FAILED)
    @app.get("/readyz", response_model=StateAnswer, responses=CHECK_FAILED)
    async def readyz() -> JSONResponse:
        """Readiness: 200 means that a session opened now gets actions."""
        state = control.state
        return JSONResponse({"state": state.state}, 200 if state.ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def show_metrics() -> Response:
        """Metrics of all processes in the Prometheus text format, at most a second or two old."""
        return Response(shown.metrics_text(), media_type=METRICS_TYPE)

    @app.get("/v1/models", response_model=ModelsAnswer)
    async def models() -> JSONResponse:
        """List the policy and, where chat is served, the chat model under each of its names."""
        return JSONResponse({"object": "list", "data": shown.models})


def _add_chat(app: FastAPI, chat: ChatSide | None, shown: Shown) -> None:
    def passed() -> Response:
        _check_open(shown)
        if chat is None:
            raise Unavailable("no chat model is configured", reason=Reason.NO_CHAT)
        return Passed(chat)

    @app.post("/v1/chat/completions", responses=shapes.ANSWERS, openapi_extra=shapes.body_of(ChatBody))
    async def chat_completions() -> Response:
        """Answer a conversation; with `stream`, as server-sent events."""
        return passed()

    @app.post("/v1/completions", responses=shapes.ANSWERS, openapi_extra=shapes.body_of(CompletionBody))
    async def completions() -> Response:
        """Continue a text; with `stream`, as server-sent events."""
        return passed()

    @app.post("/tokenize", responses=shapes.FAILURES, openapi_extra=shapes.body_of(TokenizeBody))
    async def tokenize() -> Response:
        """Return the token ids of a text, or of messages after the chat template."""
        return passed()

    @app.get(PREFIXES, responses=shapes.FAILURES)
    async def prefixes() -> Response:
        """List the fixed prefix of every declared slot."""
        return passed()

    @app.put(f"{PREFIXES}/{{slot}}", responses=shapes.FAILURES, openapi_extra=shapes.body_of(PrefixBody))
    async def set_prefix(slot: str) -> Response:  # noqa: ARG001
        """Replace the prefix of a declared slot. Returns once the new one is in use; the old one serves until then."""
        return passed()

    @app.delete(f"{PREFIXES}/{{slot}}", responses=shapes.FAILURES)
    async def clear_prefix(slot: str) -> Response:  # noqa: ARG001
        """Remove the prefix of a slot."""
        return passed()


def _check_open(shown: Shown) -> None:
    if shown.draining:
        raise Unavailable("the service is stopping", reason=Reason.DRAINING)


async def _framework_error(_: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = str(error.detail) if isinstance(error, HTTPException) else "internal error"
    headers = error.headers if isinstance(error, HTTPException) else None
    return JSONResponse(error_of_status(status, detail), status, headers)
