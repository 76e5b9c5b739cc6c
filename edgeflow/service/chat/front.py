"""The chat front: the process of chat's bodies, templates, images and answers. It may be killed at any time."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgeflow.config.chat import ChatSlot
from edgeflow.config.service import ServiceConfig, load_config
from edgeflow.ipc.chat_messages import ChatDone, ChatReady, ChatRejected, ChatToken, PrefixSet
from edgeflow.ipc.messages import Message
from edgeflow.ipc.packets import close_all, seal
from edgeflow.service.chat.body import PrefixBody
from edgeflow.service.chat.prompts import ChatText
from edgeflow.service.chat.queue import ChatQueue
from edgeflow.service.chat.routes import ChatFront, chat_routes
from edgeflow.service.children.child import ServingChild, sealed
from edgeflow.service.children.messages import (
    ChatSocket,
    ChildMessage,
    Drain,
    Drained,
    RequestSocket,
    SavedState,
    SaveState,
)
from edgeflow.service.children.start import ChildStart
from edgeflow.service.http.answers import METRICS_TYPE, application
from edgeflow.service.http.middleware import PREFIXES, InternalMiddleware
from edgeflow.service.http.server import HttpServer
from edgeflow.service.observe.process_metrics import ChatMetrics
from edgeflow.service.worker.link import WorkerLink
from edgeflow_client.clock import MonotonicClock
from edgeflow_client.errors import InvalidArgument, NotFound, WorkerError
from edgeflow_client.reasons import Reason


class ChatPort:
    """The connection to the present worker, if any. listener: receives its messages on the loop."""

    def __init__(self) -> None:
        self.listener: ChatQueue | None = None
        self._link: WorkerLink | None = None

    @property
    def attached(self) -> bool:
        """True if there is a socket to a worker."""
        return self._link is not None

    def send(self, message: Message) -> None:
        """Queue a message; ignored without a worker."""
        if self._link is not None:
            self._link.send(message)

    def attach(self, sock: socket.socket) -> None:
        """Replace the socket to the worker; a socket that cannot be used is closed."""
        self.close()
        link = self._link = WorkerLink(
            lambda message: self._receive(link, message), lambda: None, lambda _: self._lost(link)
        )
        try:
            link.connect(sock)
        except OSError:
            self._link = None

    def close(self) -> None:
        """Drop the connection."""
        link = self._link
        if link is not None:
            self._lost(link)
            link.close()

    def _receive(self, link: WorkerLink, message: Message) -> None:
        if link is not self._link or self.listener is None:
            return
        match message:
            case ChatReady():
                self.listener.worker_ready(message)
            case ChatToken() | ChatDone() | ChatRejected() | PrefixSet():
                self.listener.worker_message(message)

    def _lost(self, link: WorkerLink) -> None:
        if link is self._link:
            self._link = None
            if self.listener is not None:
                self.listener.worker_lost()


MAX_KEPT_BYTES = 1 << 20
CHECK_S = 1.0


async def serve(start: ChildStart) -> int:
    """Serve until control is gone or ends this process; returns the exit code."""
    return await ChatProcess(start, load_config(start.config, {})).run()


class ChatProcess(ServingChild):
    """The process. It serves once the tokenizer is loaded and control has sent the tokens in force."""

    def __init__(self, start: ChildStart, config: ServiceConfig) -> None:
        self.metrics = ChatMetrics()
        super().__init__(start, self.metrics)
        self._port = ChatPort()
        self.queue = ChatQueue(config.chat, self._port.send, MonotonicClock(), self.metrics, self._log)
        self._port.listener = self.queue
        self.front = ChatFront(config, self.queue, self._keep)
        app = build_chat_app(self.front, self.metrics)
        app.add_middleware(InternalMiddleware, log=self._log, reader_s=config.chat.request_s)
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
            case SavedState():
                restore(self.front, message.key, sealed(descriptors, MAX_KEPT_BYTES))
            case ChatSocket():
                if len(descriptors) != 1:
                    raise WorkerError("a message lacks its descriptor")
                self._port.attach(socket.socket(fileno=descriptors.pop()))
            case Drain():
                self._spawn(self._drain(message.deadline_ms))

    def _credentials_changed(self) -> None:
        self.queue.end_callers(self._authenticator.may_chat)

    def _keep(self, key: str, data: bytes) -> None:
        """Have control store data for the next chat front; if it cannot, the data is lost with this process."""
        kept = False
        if len(data) <= MAX_KEPT_BYTES:
            descriptor = seal(data)
            kept = self._link.send(SaveState(key), [descriptor])
            close_all([descriptor])
        if not kept:
            self._log.event("prefix_not_kept", slot=key)

    async def _drain(self, deadline_ms: int) -> None:
        """Reject new and waiting requests, finish the running one and wait until the answers have left."""
        self.queue.drain()
        await self.queue.finish(deadline_ms)
        await self._http.flush()
        self._link.send(Drained())

    async def _check(self) -> None:
        """End the requests of expired tokens; request a new socket if the last one was lost."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.queue.end_callers(self._authenticator.may_chat)
            if not self._port.attached:
                self._link.send(RequestSocket())

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
    return application([*chat_routes(front), *prefix_routes(front), *internal])


REMOVED = b"null"


def prefix_routes(front: ChatFront) -> list[Route]:
    """The routes, which the gateway limits to administrators."""

    async def prefixes(_: Request) -> JSONResponse:
        """List the fixed prefix of every declared slot."""
        text = front.loaded()
        entries = await asyncio.to_thread(lambda: [_entry(text, slot_id) for slot_id in text.slots])
        return JSONResponse({"object": "list", "data": entries})

    async def set_prefix(request: Request) -> JSONResponse:
        """Replace the prefix of a declared slot. Returns once the new one is in use; the old one serves until then."""
        slot = request.path_params["slot"]
        async with front.intake.body(PrefixBody, request) as body:
            text = _declared(front, slot)
            changed = ChatSlot(id=slot, messages=list(body.messages), text=body.text)
            ids = await asyncio.to_thread(text.prefix_ids, changed)
        length = front.queue.check().length
        if len(ids) >= length:
            field = "messages" if body.messages else "text"
            why = f"has {len(ids)} tokens; the limit is {length - 1}"
            raise InvalidArgument(why, field=field, reason=Reason.CONTEXT_LENGTH_EXCEEDED)
        return await _changed(front, slot, changed, ids)

    async def clear_prefix(request: Request) -> JSONResponse:
        """Remove the prefix of a slot."""
        slot = request.path_params["slot"]
        _declared(front, slot)
        return await _changed(front, slot, None, [])

    one = f"{PREFIXES}/{{slot}}"
    return [
        Route(PREFIXES, prefixes, methods=["GET"]),
        Route(one, set_prefix, methods=["PUT"]),
        Route(one, clear_prefix, methods=["DELETE"]),
    ]


def restore(front: ChatFront, slot_id: str, data: bytes) -> None:
    """Restore a change stored by an earlier chat front; one that no longer fits the configuration is ignored."""
    text = front.text
    if text is None or slot_id not in text.slots:
        return
    try:
        slot = None if data == REMOVED else ChatSlot.model_validate_json(data)
        ids = text.prefix_ids(slot) if slot is not None else []
    except (ValueError, InvalidArgument):
        return
    text.replace(slot_id, slot)
    front.queue.restore(slot_id, ids)


def _declared(front: ChatFront, slot: str) -> ChatText:
    text = front.loaded()
    if slot not in text.slots:
        known = ", ".join(text.slots) or "none"
        raise NotFound(f"unknown slot; declared slots: {known}", field="slot")
    return text


async def _changed(front: ChatFront, slot_id: str, slot: ChatSlot | None, ids: list[int]) -> JSONResponse:
    await front.queue.set_prefix(slot_id, ids)
    front.loaded().replace(slot_id, slot)
    front.keep(slot_id, slot.model_dump_json().encode() if slot is not None else REMOVED)
    return JSONResponse({"id": slot_id, "object": "prefix", "tokens": len(ids)})


def _entry(text: ChatText, slot_id: str) -> dict[str, Any]:
    slot = text.slots[slot_id]
    entry: dict[str, Any] = {"id": slot_id, "object": "prefix", "tokens": 0}
    if slot is not None:
        entry["tokens"] = len(text.prefix_ids(slot))
        entry |= {"text": slot.text} if slot.text else {"messages": [each.model_dump() for each in slot.messages]}
    return entry
