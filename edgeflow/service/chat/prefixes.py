"""Administration of fixed prefixes at run time: list, replace and remove them."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from edgeflow.config import ChatSlot
from edgeflow.errors import InvalidArgument, NotFound
from edgeflow.reasons import Reason
from edgeflow.service.chat import shapes
from edgeflow.service.chat.body import PREFIXES, PrefixBody
from edgeflow.service.chat.routes import ChatFront
from edgeflow.service.chat.text import ChatText

REMOVED = b"null"


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
        async with front.intake.body(PrefixBody, request) as body:
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


def restore(front: ChatFront, slot_id: str, data: bytes) -> None:
    """Take over a change that an earlier chat front kept; one that no longer fits the configuration is ignored."""
    text = front.text
    if text is None or slot_id not in text.slots:
        return
    try:
        slot = None if data == REMOVED else ChatSlot.model_validate_json(data)
        ids = text.prefix_ids(slot) if slot is not None else []
    except (ValueError, InvalidArgument):
        return
    text.replace(slot_id, slot)
    front.desk.restore(slot_id, ids)


def _declared(front: ChatFront, slot: str) -> ChatText:
    text = front.loaded()
    if slot not in text.slots:
        known = ", ".join(text.slots) or "none"
        raise NotFound(f"unknown slot; declared slots: {known}", field="slot")
    return text


async def _changed(front: ChatFront, slot_id: str, slot: ChatSlot | None, ids: list[int]) -> JSONResponse:
    await front.desk.set_prefix(slot_id, ids)
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
