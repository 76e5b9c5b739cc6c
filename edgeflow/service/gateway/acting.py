"""POST /v1/act in the gateway: reads, parses, checks and matches an observation, and writes the answer."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from weakref import WeakValueDictionary

from starlette.requests import ClientDisconnect, Request

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import PolicyInputs
from edgeflow.service.children.messages import ActDone
from edgeflow.service.gateway.control import Observation
from edgeflow.service.grpc.codec import check_act
from edgeflow.service.http.act import act_request, parse_body
from edgeflow.service.http.answers import CALLER
from edgeflow.service.http.errors import BodyLate, BodyTooLarge
from edgeflow.service.observation.matching import matched
from edgeflow.service.observation.names import Names
from edgeflow_client.errors import RETRY_AFTER_MS, ResourceExhausted
from edgeflow_client.reasons import Reason

SMALL_BODY_BYTES = 128 << 10  # bodies up to here are read at once; the rest of a larger one needs a place
LARGE_BODIES = 8  # places
LARGE_PER_ADDRESS = 2
LARGE_WAIT_S = 3.0  # for a place
LARGE_READ_S = 2.0  # for the rest of a body to arrive
OTHER_BYTES = 64 << 10  # of a body beside its images: text, numbers, names


class Observations:
    """Reads observations: large bodies a few at a time, one body parsed at a time."""

    def __init__(self, config: ServiceConfig) -> None:
        limits = self._limits = config.limits
        self._alias = config.alias
        self._names = Names.of(config)
        self._most = min(limits.http_body_bytes, limits.cameras * limits.image_bytes * 4 // 3 + OTHER_BYTES)
        self._places = _Places()
        self._parsing = asyncio.Lock()

    async def read(self, request: Request, inputs: PolicyInputs) -> Observation:
        """The observation of a request, checked and matched; RequestErrors name the field and the limit.

        inputs: what the policy needs.
        """
        async with contextlib.AsyncExitStack() as place:
            body = await self._body(request, place)
            return await self._observation(request, body, inputs)

    async def _observation(self, request: Request, body: bytes, inputs: PolicyInputs) -> Observation:
        received_ns = time.monotonic_ns()
        async with self._parsing:
            parsed = act_request(parse_body(request.headers.get("content-type", ""), body))
            opened, frame = check_act(parsed, self._alias, self._limits)
            opened = matched(opened, inputs, self._names)
        return Observation(opened=opened, frame=frame, received_ns=received_ns)

    async def _body(self, request: Request, place: contextlib.AsyncExitStack) -> bytes:
        """The body, at most the limit of this route; `place` keeps that of a large one."""
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._most:
            raise self._too_large()
        data, more = bytearray(), True
        while more and len(data) <= SMALL_BODY_BYTES:
            more = await self._next(request, data)
        if more:
            peer: str = request.scope[CALLER].peer
            await self._places.take(peer, place)
            try:
                await asyncio.wait_for(self._rest(request, data), LARGE_READ_S)
            except asyncio.TimeoutError:
                text = f"the rest of a body must arrive within {LARGE_READ_S:g} s"
                raise BodyLate(text, field="body") from None
        return bytes(data)

    async def _rest(self, request: Request, data: bytearray) -> None:
        while await self._next(request, data):
            pass

    async def _next(self, request: Request, data: bytearray) -> bool:
        """Read the next part; False after the last one."""
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        data += message.get("body", b"")
        if len(data) > self._most:
            raise self._too_large()
        return bool(message.get("more_body", False))

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"exceeds the limit of {self._most} bytes for an observation", field="body", reason=Reason.BODY_TOO_LARGE
        )


class _Places:
    """Places to read large bodies, some of them per address."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(LARGE_BODIES)
        self._of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def take(self, address: str, place: contextlib.AsyncExitStack) -> None:
        """Wait for a place, and give it back with the context; ResourceExhausted if none gets free."""
        own = self._of.setdefault(address, asyncio.Semaphore(LARGE_PER_ADDRESS))
        try:
            for each in (own, self._all):
                await asyncio.wait_for(each.acquire(), LARGE_WAIT_S)
                place.callback(each.release)
        except asyncio.TimeoutError:
            text = "other large bodies are being read"
            raise ResourceExhausted(
                text, field="body", reason=Reason.QUEUE_FULL, retry_after_ms=RETRY_AFTER_MS
            ) from None


def act_answer(done: ActDone) -> dict[str, Any]:
    """The answer: the chunk and its first action, the schema, age limit, timings and validity."""
    action, schema = done.action, done.schema
    chunk, timings, report = action.chunk, action.timings, action.report
    return {
        "action": list(chunk.row(0)) if chunk else [],
        "chunk": [list(chunk.row(index)) for index in range(chunk.horizon)] if chunk else [],
        "step_ms": chunk.step_ms if chunk else 0.0,
        "command": action.command.value,
        "reason": action.reason,
        "token_ids": list(action.token_ids),
        "valid_for_ms": action.valid_for_ms,
        "max_age_ms": action.max_age_ms,
        "limited": [
            {
                "dimension": each.dimension,
                "limit": each.limit.value,
                "beyond": each.beyond,
                "changed": each.changed,
            }
            for each in report.limited
        ],
        "candidates": [asdict(each) for each in report.candidates],
        "chosen": report.chosen,
        "schema": {
            "names": list(schema.names),
            "units": list(schema.units),
            "low": _or_null(schema.low),
            "high": _or_null(schema.high),
            "relative": list(schema.relative),
            "frame": schema.frame,
            "rotation": schema.rotation,
            "control_rate_hz": schema.control_rate_hz,
            "whole_way": schema.whole_way,
            "horizon": schema.horizon,
            "step_ms": schema.step_ms,
        },
        "timings_ms": {
            "decode": timings.decode_ns / 1e6,
            "queue": timings.queue_ns / 1e6,
            "inference": timings.inference_ns / 1e6,
            "server": action.server_ns / 1e6,
        },
    }


def _or_null(limits: Sequence[float]) -> list[float | None]:
    """Limits for JSON, which has no infinity."""
    return [limit if math.isfinite(limit) else None for limit in limits]
