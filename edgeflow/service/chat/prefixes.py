"""Administration of fixed prefixes at run time: list, replace and remove them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import FailFast, Field, model_validator

from edgeflow.config import ChatMessage, ChatSlot
from edgeflow.errors import InvalidArgument, NotFound
from edgeflow.reasons import Reason
from edgeflow.service.chat import shapes
from edgeflow.service.chat.body import MAX_MESSAGES, parse
from edgeflow.service.chat.routes import ChatFront
from edgeflow.service.chat.text import ChatText
from edgeflow.service.chat.turns import Body, OneUnknownKey

PREFIXES = "/admin/v1/prefixes"


class PrefixMessage(ChatMessage, OneUnknownKey):
    """A message of a fixed prefix, as a client sends it."""


class PrefixBody(Body):
    """A fixed prefix: messages (chat completions), or text (completions)."""

    messages: Annotated[list[PrefixMessage], FailFast()] = Field(default_factory=list, max_length=MAX_MESSAGES)
    text: str = Field("", max_length=1 << 20)

    @model_validator(mode="after")
    def _one_of_both(self) -> PrefixBody:
        if bool(self.messages) == bool(self.text):
            raise ValueError("give either messages or text")
        return self


def add_prefixes(app: FastAPI, front: ChatFront) -> None:
    """Add the routes, which the HTTP middleware limits to administrators."""

    @app.get(PREFIXES, responses=shapes.FAILURES)
    async def prefixes() -> JSONResponse:
        """List the fixed prefix of every declared slot."""
        text = front.loaded()
        entries = await asyncio.to_thread(lambda: [_entry(text, slot_id) for slot_id in text.slots])
        return JSONResponse({"object": "list", "data": entries})

    @app.put(f"{PREFIXES}/{{slot}}", responses=shapes.FAILURES, openapi_extra=shapes.body_of(PrefixBody))
    async def set_prefix(slot: str, request: Request) -> JSONResponse:
        """Replace the prefix of a declared slot. Returns once the new one is in use; the old one serves until then."""
        data = await request.body()
        body = await asyncio.to_thread(parse, PrefixBody, request.headers.get("content-type", ""), data)
        text = _declared(front, slot)
        changed = ChatSlot(id=slot, messages=list(body.messages), text=body.text)
        ids = await asyncio.to_thread(text.prefix_ids, changed)
        capacity = front.desk.check().capacity
        if len(ids) >= capacity:
            field = "messages" if body.messages else "text"
            why = f"has {len(ids)} tokens; the limit is {capacity - 1}"
            raise InvalidArgument(why, field=field, reason=Reason.CONTEXT_LENGTH_EXCEEDED)
        return await _changed(front, slot, changed, ids)

    @app.delete(f"{PREFIXES}/{{slot}}", responses=shapes.FAILURES)
    async def clear_prefix(slot: str) -> JSONResponse:
        """Remove the prefix of a slot."""
        _declared(front, slot)
        return await _changed(front, slot, None, [])


def _declared(front: ChatFront, slot: str) -> ChatText:
    text = front.loaded()
    if slot not in text.slots:
        known = ", ".join(text.slots) or "none"
        raise NotFound(f"unknown slot; declared slots: {known}", field="slot")
    return text


async def _changed(front: ChatFront, slot_id: str, slot: ChatSlot | None, ids: list[int]) -> JSONResponse:
    await front.desk.set_prefix(slot_id, ids)
    front.loaded().replace(slot_id, slot)
    return JSONResponse({"id": slot_id, "object": "prefix", "tokens": len(ids)})


def _entry(text: ChatText, slot_id: str) -> dict[str, Any]:
    slot = text.slots[slot_id]
    entry: dict[str, Any] = {"id": slot_id, "object": "prefix", "tokens": 0}
    if slot is not None:
        entry["tokens"] = len(text.prefix_ids(slot))
        entry |= {"text": slot.text} if slot.text else {"messages": [each.model_dump() for each in slot.messages]}
    return entry
