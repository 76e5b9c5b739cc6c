"""Chat's routes in the gateway: head, body and answer pass on to the chat front as bytes, bounded and never parsed.

Callers whose requests are rejected have a pace: to read them costs processor time that others want.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote

import h11
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from edgeflow.service.errors import no_worker
from edgeflow.service.http.answers import CALLER, REQUEST_ID
from edgeflow.service.http.middleware import PEER, PRINCIPAL, TOKEN
from edgeflow.service.security.auth import Caller
from edgeflow_client.errors import DeadlineExceeded, RequestError, ResourceExhausted
from edgeflow_client.reasons import Reason

REJECTED_BYTES_PER_S = 4_000_000
REMEMBERED_S = 10.0  # after a rejection
LONGEST_WAIT_S = 2.0  # well below what a client has to send its body
MOST_CALLERS = 1024
CONNECT_S = 2.0
PIECE_BYTES = 64 << 10
MAX_ANSWER_BYTES = 16 << 20  # of an internal answer
OWN = b"x-edgeflow-"  # headers that only the gateway writes
_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"proxy-connection", b"trailer"}
_DROPPED = {*_HOP, b"host", b"expect", b"authorization", b"x-request-id"}


@dataclass(slots=True)
class _Account:
    """When the caller's next body may be read, and how long its last rejection counts."""

    free_s: float
    until_s: float


class FairTurns:
    """Gives callers turns; times are seconds of any steady clock.

    A caller without a recent rejection never waits. The bodies of others follow each other at REJECTED_BYTES_PER_S.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def turn(self, caller: str, size: int, now_s: float) -> tuple[float, int] | None:
        """When a body of this many bytes may be read, in seconds from now; None if that is beyond LONGEST_WAIT_S.

        Also how many of its bytes count towards the caller's pace already.
        """
        account = self._accounts.get(caller)
        if account is None:
            return 0.0, 0
        wait_s = max(account.free_s - now_s, 0.0)
        if not wait_s and now_s >= account.until_s:
            del self._accounts[caller]
            return 0.0, 0
        if wait_s > LONGEST_WAIT_S:
            return None
        account.free_s = now_s + wait_s + size / REJECTED_BYTES_PER_S
        return wait_s, size

    def rejected(self, caller: str, size: int, now_s: float) -> None:
        """A request was rejected. size: bytes that were read of its body beyond those paid."""
        account = self._accounts.pop(caller, None) or _Account(now_s, now_s)
        account.free_s = max(account.free_s, now_s) + size / REJECTED_BYTES_PER_S
        account.until_s = now_s + REMEMBERED_S
        self._accounts[caller] = account
        if len(self._accounts) > MOST_CALLERS:
            del self._accounts[next(iter(self._accounts))]  # the one whose last rejection is the oldest


@dataclass(frozen=True, slots=True)
class ChatSide:
    """Where the chat front listens."""

    path: str
    answer_s: float
    """The longest it may take for the first byte of an answer."""

    async def get(self, target: str) -> bytes:
        """The body of an internal GET; OSError or h11.ProtocolError if there is none."""
        head = h11.Request(method="GET", target=target, headers=[("host", "chat"), ("connection", "close")])
        body = b""
        async with _connected(self.path) as link:
            await link.send(head, h11.EndOfMessage())
            async for event in link.events():
                if isinstance(event, h11.Response) and event.status_code != 200:
                    raise ConnectionError(f"status {event.status_code}")
                if isinstance(event, h11.Data):
                    body += bytes(event.data)
                    if len(body) > MAX_ANSWER_BYTES:
                        raise ConnectionError("an answer without end")
        return body


class PassThrough(Response):
    """The chat front's answer to the request, piece by piece."""

    def __init__(self, side: ChatSide, pace: FairTurns) -> None:
        super().__init__()
        self._side = side
        self._pace = pace
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the caller's pace and connect; then pass on both ways until the answer ends or the client leaves."""
        caller: Caller = scope[CALLER]
        name, body = caller.principal or caller.peer, _Body(receive)
        paid = await self._turn(name, _length(scope))
        try:
            await self._answer(scope, body.receive, send)
        except RequestError as error:
            self.status_code = error.http_status
            raise
        finally:
            if HTTPStatus.BAD_REQUEST <= self.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
                self._pace.rejected(name, max(body.bytes - paid, 0), time.monotonic())

    async def _turn(self, caller: str, size: int) -> int:
        """Wait until the body may be read; returns how many of its bytes are paid."""
        turn = self._pace.turn(caller, size, time.monotonic())
        if turn is None:
            await asyncio.sleep(LONGEST_WAIT_S)  # or its connections would soon ask again
            raise ResourceExhausted(
                "too many requests were rejected, and the next ones are read slowly",
                field="body",
                reason=Reason.QUEUE_FULL,
                retry_after_ms=int(1000 * LONGEST_WAIT_S),
            )
        wait_s, paid = turn
        if wait_s:
            await asyncio.sleep(wait_s)
        return paid

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with _connected(self._side.path) as link:
                await link.send(_head(scope))
                await self._pass(link, receive, send)
        except asyncio.TimeoutError:
            raise DeadlineExceeded("the chat front did not answer in time", reason=Reason.CHAT_TIMEOUT) from None
        except (OSError, h11.ProtocolError, EOFError):
            if self._begun:
                raise ClientDisconnect from None  # all that can be said is that the answer ends here
            raise no_worker("the chat front is restarting") from None

    async def _pass(self, link: _Link, receive: Receive, send: Send) -> None:
        up = asyncio.create_task(_upload(link, receive))
        down = asyncio.create_task(self._download(link, send))
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            if up.done() and not down.done() and up.exception() is None:
                raise ClientDisconnect  # an upload ends by itself only when the client leaves
            if not down.done() and isinstance(up.exception(), (OSError, h11.ProtocolError)):
                await asyncio.wait({down}, timeout=CONNECT_S)  # it answered before the body's end, and closed
            if not down.done():
                up.result()
            down.result()
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    async def _download(self, link: _Link, send: Send) -> None:
        events = link.events()
        first = await asyncio.wait_for(anext(events), self._side.answer_s)
        if not isinstance(first, h11.Response):
            raise h11.RemoteProtocolError("no answer")
        headers = [(name, value) for name, value in first.headers if name not in (*_HOP, b"x-request-id", b"date")]
        self._begun, self.status_code = True, first.status_code
        await send({"type": "http.response.start", "status": first.status_code, "headers": headers})
        async for event in events:
            if isinstance(event, h11.Data):
                await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class _Body:
    """Counts the bytes of a request's body."""

    def __init__(self, receive: Receive) -> None:
        self.bytes = 0
        self._receive = receive

    async def receive(self) -> Message:
        message = await self._receive()
        self.bytes += len(message.get("body", b""))
        return message


def _length(scope: Scope) -> int:
    """The length that a request declares; 0 without one."""
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(declared) if declared.isdigit() else 0


async def _upload(link: _Link, receive: Receive) -> None:
    """Pass the body on, then wait until the client leaves."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        if link.sending:
            if body := message.get("body", b""):
                await link.send(h11.Data(data=body))
            if not message.get("more_body"):
                await link.send(h11.EndOfMessage())


class _Link:
    """A connection to the chat front, for one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)

    @property
    def sending(self) -> bool:
        """True until the request is complete."""
        return self._http.our_state is h11.SEND_BODY

    async def send(self, *events: h11.Event) -> None:
        for event in events:
            self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()

    async def events(self) -> AsyncIterator[h11.Event]:
        """The answer's head and pieces."""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(PIECE_BYTES))
            elif isinstance(event, h11.EndOfMessage):
                return
            elif isinstance(event, (h11.Response, h11.Data)):
                yield event
            elif not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the connection ended")


@contextlib.asynccontextmanager
async def _connected(path: str) -> AsyncIterator[_Link]:
    reader, writer = await asyncio.wait_for(asyncio.open_unix_connection(path, limit=PIECE_BYTES), CONNECT_S)
    try:
        yield _Link(reader, writer)
    finally:
        writer.transport.abort()


def _head(scope: Scope) -> h11.Request:
    """The request's head with the caller in headers of the gateway's own."""
    target = quote(scope["path"], safe="/:@!$&'()*+,;=-._~").encode()
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    return h11.Request(method=scope["method"], target=target, headers=list(_headers(scope)))


def _headers(scope: Scope) -> Iterator[tuple[bytes, bytes]]:
    caller: Caller = scope[CALLER]
    named = {name for name, _ in scope["headers"]}
    yield b"host", b"chat"
    yield b"connection", b"close"
    yield b"x-request-id", scope[REQUEST_ID].encode()
    for name, value in ((PEER, caller.peer), (PRINCIPAL, caller.principal), (TOKEN, caller.token)):
        yield name, value.encode("ascii", "replace")
    for name, value in scope["headers"]:
        if name not in _DROPPED and not name.startswith(OWN):
            yield name, value
    if b"content-length" not in named and b"transfer-encoding" in named:
        yield b"transfer-encoding", b"chunked"
    elif b"content-length" not in named:
        yield b"content-length", b"0"
