"""POST /v1/act in the gateway: read, parse, check and decode an observation; write the answer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from edgeflow.config import ServiceConfig
from edgeflow.errors import RETRY_AFTER_MS, ResourceExhausted
from edgeflow.reasons import Reason
from edgeflow.service.children.messages import ActDone
from edgeflow.service.gateway.control import Seen
from edgeflow.service.grpc.codec import check_act, decode_frame
from edgeflow.service.http.act import act_request, parse_body
from edgeflow.service.http.edge import BodyTooLarge

SMALL_BODY_BYTES = 128 << 10  # bodies up to here are read at once
LARGE_BODIES = 8  # larger ones in memory at a time
LARGE_WAIT_S = 2.0
OTHER_BYTES = 64 << 10  # of a body beside its image: text, numbers, names


class Observations:
    """Reads observations: large bodies a few at a time, one body parsed at a time, images decoded in threads."""

    def __init__(self, config: ServiceConfig) -> None:
        self._alias = config.alias
        self._limits = config.limits
        self._most = min(config.limits.http_body_bytes, config.limits.image_bytes * 4 // 3 + OTHER_BYTES)
        self._large = asyncio.Semaphore(LARGE_BODIES)
        self._parsing = asyncio.Lock()
        self._decoding = asyncio.Semaphore(config.decode_threads)

    async def read(self, request: Request) -> Seen:
        """The checked and decoded observation of a request; RequestErrors name the field and the limit."""
        length = request.headers.get("content-length", "")
        large = not length.isdigit() or int(length) > SMALL_BODY_BYTES
        if large:
            await self._wait()
        try:
            return await self._read(request)
        finally:
            if large:
                self._large.release()

    async def _read(self, request: Request) -> Seen:
        body = await self._body(request)
        received_ns = time.monotonic_ns()
        async with self._parsing:
            parsed = act_request(parse_body(request.headers.get("content-type", ""), body))
            del body
            opened, frame = check_act(parsed, self._alias, self._limits)
        async with self._decoding:
            began_ns = time.monotonic_ns()
            pixels = await asyncio.to_thread(decode_frame, frame, opened.cameras[0])
        decode_ns = time.monotonic_ns() - began_ns
        return Seen(opened=opened, pixels=pixels, received_ns=received_ns, decode_ns=decode_ns)

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._large.acquire(), LARGE_WAIT_S)
        except asyncio.TimeoutError:
            text = f"{LARGE_BODIES} other large bodies are being read"
            raise ResourceExhausted(
                text, field="body", reason=Reason.QUEUE_FULL, retry_after_ms=RETRY_AFTER_MS
            ) from None

    async def _body(self, request: Request) -> bytes:
        """The body, at most the limit of this route."""
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._most:
            raise self._too_large()
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._most:
                raise self._too_large()
            parts.append(part)
        return b"".join(parts)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"exceeds the limit of {self._most} bytes for one image", field="body", reason=Reason.BODY_TOO_LARGE
        )


def act_answer(done: ActDone) -> dict[str, Any]:
    """The answer: the action and its schema, age limit, timings and validity."""
    schema, timings = done.schema, done.timings
    return {
        "action": done.values,
        "command": done.command,
        "reason": done.reason,
        "token_ids": done.token_ids,
        "valid_for_ms": done.valid_for_ms,
        "max_age_ms": done.max_age_ms,
        "schema": {
            "names": list(schema.names),
            "units": list(schema.units),
            "low": _or_null(schema.low),
            "high": _or_null(schema.high),
            "relative": list(schema.relative),
            "frame": schema.frame,
            "rotation": schema.rotation,
        },
        "timings_ms": {
            "decode": timings.decode_ns / 1e6,
            "queue": timings.queue_ns / 1e6,
            "inference": timings.inference_ns / 1e6,
            "server": done.server_ns / 1e6,
        },
    }


def _or_null(limits: Sequence[float]) -> list[float | None]:
    """Limits for JSON, which has no infinity."""
    return [limit if math.isfinite(limit) else None for limit in limits]
