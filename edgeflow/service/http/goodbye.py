"""Answers to connections that are about to be closed, written so that the client can read them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from http import HTTPStatus

from edgeflow.service.http.errors import error_of_status

GOODBYE_S = 1.0  # for a client to read its last answer
MAX_REFUSED = 256  # connections that are being refused at once; further ones are reset


def last_answer(status: int, message: str, *headers: str) -> bytes:
    """An answer in the form of every error, after which the connection is closed."""
    body = json.dumps(error_of_status(status, message)).encode()
    first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
    lines = [first, "connection: close", "content-type: application/json", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


TOO_MANY = last_answer(429, "too many connections: close some, or try again later", "retry-after: 1")


@dataclass(slots=True)
class Refusals:
    """Connections beyond a limit. most_bytes: what is read of one of them."""

    most_bytes: int
    open: set[asyncio.Transport] = field(default_factory=set)

    def refuse(self, transport: asyncio.Transport) -> None:
        """Answer 429, or reset the connection where too many are being refused already."""
        if len(self.open) >= MAX_REFUSED:
            transport.abort()
            return
        self.open.add(transport)
        transport.set_protocol(_Refused(self, transport))


class _Refused(asyncio.Protocol):
    """A connection that gets 429 with its first bytes, and is read until the client has closed it.

    Closing with unread bytes would reset the connection, and the client might lose the answer.
    """

    def __init__(self, refusals: Refusals, transport: asyncio.Transport) -> None:
        self._refusals = refusals
        self._transport = transport
        self._left = refusals.most_bytes
        self._answered = False
        self._timer = asyncio.get_running_loop().call_later(GOODBYE_S, self._end)

    def data_received(self, data: bytes) -> None:
        self._answer()
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        self._timer.cancel()
        self._refusals.open.discard(self._transport)

    def _answer(self) -> None:
        if not self._answered:
            self._answered = True
            self._transport.write(TOO_MANY)
            if self._transport.can_write_eof():
                self._transport.write_eof()

    def _end(self) -> None:
        """Give up on a client that neither speaks nor closes."""
        self._answer()
        self._transport.close()
        self._timer = asyncio.get_running_loop().call_later(GOODBYE_S, self._transport.abort)
