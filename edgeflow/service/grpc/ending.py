"""The end of a call with an error: its status, and trailers for programs."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from edgeflow_client.errors import EdgeflowError, RequestError

CallOver = grpc.aio.InternalError  # of a write that the library could not carry out: the client left
MOST_BYTES = 4096  # of the text as it is encoded; clients may drop a status whose trailers exceed 8 KiB


async def abort(context: Any, error: EdgeflowError) -> None:
    """End a call (grpc.aio.ServicerContext) with an error; raises."""
    try:
        await context.abort(grpc.StatusCode[error.code], status_text(error.text), _trailers(error))
    except CallOver:
        raise asyncio.CancelledError from None


def status_text(text: str) -> str:
    """A text as it travels in a trailer, where all but plain ASCII is percent-encoded: cut where it is too long."""
    left = MOST_BYTES
    for place, character in enumerate(text):
        left -= _encoded_bytes(character)
        if left < 0:
            return f"{text[:place]} …"
    return text


def _encoded_bytes(character: str) -> int:
    plain = " " <= character <= "~" and character != "%"
    return 1 if plain else 3 * len(character.encode("utf-8", "replace"))


def _trailers(error: EdgeflowError) -> tuple[tuple[str, str], ...]:
    """The reason, the field at fault, and when to try again."""
    if not isinstance(error, RequestError):
        return ()
    trailers = [("edgeflow-reason", error.reason), ("edgeflow-field", error.field)]
    if error.retry_after_ms is not None:
        trailers.append(("retry-after-ms", str(error.retry_after_ms)))
    return tuple((key, value) for key, value in trailers if value)
