"""Administration of fixed prefixes at run time: list, replace and remove them."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from edgeflow.config.chat import ChatSlot
from edgeflow.service.chat.body import PrefixBody
from edgeflow.service.chat.routes import ChatFront
from edgeflow.service.chat.text import ChatText
from edgeflow.service.http.middleware import PREFIXES
from edgeflow_client.errors import InvalidArgument, NotFound
from edgeflow_client.reasons import Reason

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
        length = front.desk.check().length
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
