"""Connections beyond a limit, and requests that are not quite HTTP: rejected in a form that clients can read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from pathlib import Path

import httpx
import pytest

from edgeflow.service.http import protocol
from tests.service.harness import WAIT_S, serving
from tests.service.protected import Authority
from tests.service.security.test_limits import SLOW, connected, rest

TOO_MANY = b"HTTP/1.1 429 Too Many Requests"


async def test_connections_of_one_address_are_bounded(checkpoint):
    async with (
        serving(checkpoint, limits__http_connections_per_address=3) as served,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(3):
            await stack.enter_async_context(connected(served.http))
        async with connected(served.http) as (reader, writer):
            writer.write(b"GET /healthz HTTP/1.1\r\n")
            answer = await rest(reader)
            assert answer.startswith(TOO_MANY) and b"retry-after: 1" in answer and b"rate_limit_error" in answer
        assert served.metric("edgeflow_limit_rejections_total", limit="http_connections_per_address") == 1
    async with serving(checkpoint, limits__http_connections=1, **SLOW) as served:
        async with connected(served.http) as (first, _):
            async with connected(served.http) as (reader, _):
                assert (await rest(reader)).startswith(TOO_MANY), "also a connection that says nothing"
            assert (await rest(first)).startswith(b"HTTP/1.1 408 ")
        async with httpx.AsyncClient(base_url=served.http) as http:
            assert (await http.get("/healthz")).status_code == 200, "a place is free again"
        assert served.metric("edgeflow_limit_rejections_total", limit="http_connections") == 1


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_requests_beyond_the_limit_are_answered_and_none_is_reset(checkpoint, tmp_path: Path, secure: bool):
    """A body of a megabyte each: the answer comes before the body is sent, and must survive."""
    authority = Authority(tmp_path)
    cert, key = authority.issue("service")
    tls = {"tls__cert": str(cert), "tls__key": str(key), "timing__handshake_ms": 30_000} if secure else {}
    context = ssl.create_default_context(cafile=str(authority.ca)) if secure else False
    limits = httpx.Limits(max_connections=None)
    async with (
        serving(checkpoint, limits__http_connections_per_address=4, **tls) as served,
        httpx.AsyncClient(base_url=served.http, limits=limits, timeout=WAIT_S, verify=context) as http,
    ):
        count = 40 if secure else 200
        content, headers = bytes(1 << 20), {"content-type": "application/json"}
        answers = await asyncio.gather(
            *(http.post("/v1/act", content=content, headers=headers) for _ in range(count)),
        )
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {400, 429} and statuses.count(400) >= 4
        (rejected, *_) = [answer for answer in answers if answer.status_code == 429]
        assert (rejected.headers["retry-after"], rejected.json()["error"]["code"]) == ("1", "RESOURCE_EXHAUSTED")
        assert (await http.get("/healthz")).status_code == 200


async def test_rejecting_is_bounded_too(checkpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(protocol, "MAX_REJECTED", 1)
    limits = {"limits__http_connections_per_address": 1, "limits__http_body_bytes": 1 << 14}
    async with serving(checkpoint, **limits) as served, contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(connected(served.http))
        reader, writer = await stack.enter_async_context(connected(served.http))
        async with connected(served.http) as (second, _):
            assert await rest(second) == b"", "one is being refused: the next is reset"
        with contextlib.suppress(ConnectionError):
            writer.write(bytes(8 << 20))
            await writer.drain()
        await rest(reader)
        async with connected(served.http) as (third, other):
            other.write(b"GET")
            assert (await rest(third)).startswith(TOO_MANY)


CRLF = b"\r\n"
LINE = b"GET /healthz HTTP/1.1"
NAMED = b"host: localhost"
CHUNKED = b"transfer-encoding: chunked"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (CRLF.join([b"POST /v1/act HTTP/1.1", NAMED, b"content-length: 5", CHUNKED, b"", b"0", b"", b""]), 400),
        (CRLF.join([b"POST /v1/act HTTP/1.1", NAMED, CHUNKED, b"content-length: 5", b"", b"0", b"", b""]), 400),
        (CRLF.join([LINE, NAMED, b"Content-Length: 0, 0", b"", b""]), 400),
        (CRLF.join([LINE, NAMED, b"content-length: 0", b"Content-Length: 0", b"", b""]), 400),
        (b"\n".join([LINE, NAMED, b"", b""]), 400),
        (CRLF.join([LINE, NAMED, b"x: 1\ny: 2", b"", b""]), 400),
        (CRLF.join([LINE, b"", b""]), 400),
        (CRLF.join([LINE, NAMED, NAMED, b"", b""]), 400),
        (CRLF.join([LINE, NAMED, b"transfer-encoding: gzip, chunked", b"", b""]), 501),
        (CRLF.join([b"PRI * HTTP/2.0", b"", b"SM", b"", b""]), 505),
        (CRLF.join([b"GET /healthz HTTP/3.7", NAMED, b"", b""]), 505),
        (CRLF.join([LINE, NAMED, b"x: " + b"a" * (80 << 10)]), 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (CRLF.join([b"GET /secret<b> HTTP/1.1", b"bad header", b"", b""]), 400),
    ],
)
async def test_invalid_http_is_rejected_in_one_form(checkpoint, sent: bytes, status: int):
    async with serving(checkpoint) as served, connected(served.http) as (reader, writer):
        writer.write(sent)
        head, _, body = (await rest(reader)).partition(b"\r\n\r\n")
        assert int(head.split()[1]) == status and b"connection: close" in head.lower()
        error = json.loads(body)["error"]
        assert error["code"] and "secret" not in error["message"] and "bad" not in error["message"]
        assert served.events("incident") == []


async def test_requests_of_one_connection_are_checked_each(checkpoint):
    good = CRLF.join([LINE, NAMED, b"", b""])
    async with serving(checkpoint) as served, connected(served.http) as (reader, writer):
        writer.write(good + good + CRLF.join([LINE, NAMED, b"content-length: 0, 0", b"", b""]))
        assert (await rest(reader)).count(b"HTTP/1.1 200 ") == 2
