"""Clients that are slow, silent, many or wordy, over raw sockets: cut in time, and nobody else waits."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import resource
import statistics
import time
from pathlib import Path

import grpc
import httpx
import pytest

from edgeflow.service.http.protocol import MAX_CHUNKS
from edgeflow_client.rpc import control_pb2 as pb
from tests.fuzz import h2
from tests.service.harness import WAIT_S, WireRobot, eventually, frame_message, open_message, serving
from tests.service.protected import Authority

LATE_S = 0.3
SLOW = {"timing__http_headers_ms": 300, "timing__http_body_ms": 600, "timing__handshake_ms": 300}
HEAD = b"POST /v1/act HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
RESETS = 10_000


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@contextlib.asynccontextmanager
async def connected(address: str):
    """Reader and writer of a plain connection."""
    host, port = address.split("//")[-1].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Everything until the service cuts the connection."""
    try:
        return await asyncio.wait_for(reader.read(), WAIT_S)
    except ConnectionError:
        return b""


async def drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    """A byte every 50 ms until the other end has had enough."""
    with contextlib.suppress(ConnectionError):
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("sent", "dripped"),
    [(b"", b""), (HEAD, b""), (HEAD, b"x-slow: " + b"a" * 1000), (b"", b"GET / HTTP/1.1\r\n" * 100)],
    ids=["silent", "half-headers", "dripped-headers", "dripped-line"],
)
async def test_slow_headers_are_cut(checkpoint, sent: bytes, dripped: bytes):
    async with serving(checkpoint, **SLOW) as served, connected(served.http) as (reader, writer):
        started = time.monotonic()
        writer.write(sent)
        dripping = asyncio.create_task(drip(writer, dripped))
        answer = await rest(reader)
        assert time.monotonic() - started > LATE_S * 0.9
        dripping.cancel()
        assert answer.startswith(b"HTTP/1.1 408 ") and b"DEADLINE_EXCEEDED" in answer
        assert served.metric("edgeflow_limit_rejections_total", limit="http_headers_ms") == 1


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_slow_body_is_cut(checkpoint, chunked: bool):
    length = b"transfer-encoding: chunked\r\n\r\n" if chunked else b"content-length: 100000\r\n\r\n"
    async with serving(checkpoint, **SLOW) as served, connected(served.http) as (reader, writer):
        started = time.monotonic()
        writer.write(HEAD + length)
        dripping = asyncio.create_task(drip(writer, b"1\r\nx\r\n" * 100 if chunked else b"x" * 100))
        answer = await rest(reader)
        assert time.monotonic() - started > 0.5
        dripping.cancel()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert served.metric("edgeflow_limit_rejections_total", limit="http_body_ms") == 1
        assert served.events("incident") == []


async def test_a_body_slower_than_a_kilobyte_a_second_is_cut(checkpoint):
    generous = {"timing__http_body_ms": 600_000}  # the rate alone can cut it
    async with serving(checkpoint, **generous) as served, connected(served.http) as (reader, writer):
        started = time.monotonic()
        writer.write(HEAD + b"content-length: 100000\r\n\r\n")
        dripping = asyncio.create_task(drip(writer, b"x" * 1000))
        assert (await rest(reader)).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - started > 0.9
        dripping.cancel()
        assert served.metric("edgeflow_limit_rejections_total", limit="http_body_rate") == 1


async def test_a_connection_that_is_kept_has_a_limit_for_every_request(checkpoint):
    request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    async with serving(checkpoint, **SLOW) as served, connected(served.http) as (reader, writer):
        for _ in range(3):
            writer.write(request)
            answer = await asyncio.wait_for(reader.readuntil(b'"ready"}'), WAIT_S)
            assert answer.startswith(b"HTTP/1.1 200 ")
            async with connected(served.http) as (late, _):  # silence between requests is no lateness
                assert (await rest(late)).startswith(b"HTTP/1.1 408 ")
        writer.write(request[:10])
        assert (await rest(reader)).startswith(b"HTTP/1.1 408 ")


async def test_a_client_that_leaves_during_its_body_is_not_an_incident(checkpoint):
    async with serving(checkpoint) as served:
        async with connected(served.http) as (_, writer):
            writer.write(HEAD + b"content-length: 1000\r\n\r\n" + b"x" * 10)
            await writer.drain()
        async with httpx.AsyncClient(base_url=served.http) as http:
            assert (await http.get("/healthz")).status_code == 200


async def typical_delay_s(robot: WireRobot, first: int, count: int = 25) -> float:
    """From a frame to its action, the median."""
    delays_s = []
    for seq in range(first, first + count):
        started = time.monotonic()
        await robot.frame(seq)
        await robot.action(seq)
        delays_s.append(time.monotonic() - started)
    return statistics.median(delays_s)


async def test_many_slow_sockets_do_not_delay_a_robot(checkpoint):
    """All of them wait for longer than the test may take: a robot that waited for one would never act."""
    patient = {"limits__http_connections_per_address": 100, "timing__http_headers_ms": 60_000}
    async with serving(checkpoint, **patient) as served, contextlib.AsyncExitStack() as stack:
        robot = served.robot()
        await robot.open()
        alone_s = await typical_delay_s(robot, 1)
        sockets = [await stack.enter_async_context(connected(served.http)) for _ in range(100)]
        dripping = [asyncio.create_task(drip(writer, HEAD + b"x-slow: " + b"a" * 10_000)) for _, writer in sockets]
        beside_s = await typical_delay_s(robot, 1001)
        assert not any(reader.at_eof() for reader, _ in sockets)
        assert beside_s < 5 * alone_s + 0.05, "dripping takes time of the same process"
        for each in dripping:
            each.cancel()
        assert served.metric("edgeflow_limit_rejections_total", limit="http_headers_ms") == 0


@pytest.mark.parametrize(
    "headers",
    [
        b"".join(b"x-%d: 1\r\n" % i for i in range(70)),
        b"x-long: " + b"a" * (17 << 10) + b"\r\n",
    ],
    ids=["many", "long"],
)
async def test_headers_are_bounded(checkpoint, headers: bytes):
    async with serving(checkpoint) as served, connected(served.http) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + headers + b"\r\n")
        answer = await rest(reader)
        assert answer.split()[1] in (b"400", b"431")


async def test_chunks_are_bounded(checkpoint):
    async with serving(checkpoint) as served, connected(served.http) as (reader, writer):
        writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * (MAX_CHUNKS + 1))
        assert (await rest(reader)).split()[1] == b"400"
    async with serving(checkpoint) as served, connected(served.http) as (reader, writer):
        body = b"1\r\n \r\n" * (MAX_CHUNKS - 10) + b"2\r\n{}\r\n0\r\n\r\n"
        writer.write(HEAD + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n" + body)
        assert b'"field":"image"' in (await rest(reader)).replace(b" ", b""), "read, and found wanting"


async def test_garbage_is_answered_and_not_logged(checkpoint, capfd: pytest.CaptureFixture[str]):
    async with serving(checkpoint) as served:
        for garbage in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\n", b"\0" * 5000):
            async with connected(served.http) as (reader, writer):
                writer.write(garbage)
                writer.write_eof()
                await rest(reader)
            async with connected(served.service.status.grpc_address) as (reader, writer):
                writer.write(garbage)
                writer.write_eof()
                await rest(reader)
    assert "Invalid HTTP request" not in capfd.readouterr().err


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "gzip, identity", "zstd"])
async def test_compressed_bodies_are_rejected(checkpoint, encoding: str):
    async with serving(checkpoint) as served, httpx.AsyncClient(base_url=served.http) as http:
        headers = {"content-type": "application/json", "content-encoding": encoding}
        answer = await http.post("/v1/act", content=gzip.compress(b"{}" * 1000), headers=headers)
        assert (answer.status_code, answer.json()["error"]["field"]) == (415, "content-encoding")


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_messages_are_rejected(checkpoint, algorithm: grpc.Compression):
    request = pb.ActRequest(open=open_message(instruction="grasp " * 200), frame=frame_message(1)).SerializeToString()
    async with serving(checkpoint) as served:
        address = served.service.status.grpc_address
        async with grpc.aio.insecure_channel(address, compression=algorithm) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/edgeflow.v1.Control/Act")(request, timeout=WAIT_S)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert served.script.worker.submitted() == []


async def test_long_metadata_is_rejected(checkpoint):
    async with serving(checkpoint) as served:
        stub = served.channel.unary_unary("/edgeflow.v1.Control/Act")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(b"", metadata=[("x-long", "a" * 20_000)], timeout=WAIT_S)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_silent_socket_of_grpc_is_closed(checkpoint):
    async with serving(checkpoint, **SLOW) as served, connected(served.service.status.grpc_address) as (reader, _):
        await rest(reader)
        assert reader.at_eof()


async def test_a_handshake_that_does_not_come_is_cut(checkpoint, tmp_path: Path):
    cert, key = Authority(tmp_path).issue("service")
    async with serving(checkpoint, tls__cert=str(cert), tls__key=str(key), **SLOW) as served:
        for address in (served.http, served.service.status.grpc_address):
            async with connected(address) as (reader, _):
                await rest(reader)
                assert reader.at_eof()
        assert served.events("incident") == []


async def test_calls_that_are_reset_at_once_do_not_delay_a_robot(checkpoint):
    block = h2.headers(b"/edgeflow.v1.Control/Stream")
    async with serving(checkpoint) as served, contextlib.AsyncExitStack() as stack:
        robot = served.robot()
        await robot.open()
        before = rss_bytes()

        async def flood() -> int:
            reader, writer = await stack.enter_async_context(connected(served.service.status.grpc_address))
            writer.write(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0, b""))
            reading = asyncio.create_task(rest(reader))
            sent = 0
            with contextlib.suppress(ConnectionError):
                for stream in range(1, 2 * RESETS, 2):
                    writer.write(h2.call_reset_at_once(stream, block))
                    await writer.drain()
                    sent += 1
            reading.cancel()
            return sent

        flooding = asyncio.create_task(flood())
        for seq in range(1, 21):
            await robot.frame(seq)
            await asyncio.wait_for(robot.action(seq), WAIT_S)
        assert await asyncio.wait_for(flooding, WAIT_S) > 100
        await eventually(lambda: served.metric("edgeflow_rpc_total", method="Stream", code="CANCELLED") >= 1)
        assert served.metric("edgeflow_sessions") == 1
        assert rss_bytes() - before < 32 << 20
        assert served.events("incident") == []


async def test_nesting_is_bounded(checkpoint):
    async with serving(checkpoint) as served, httpx.AsyncClient(base_url=served.http) as http:
        for body in (b"[" * 500_000, b'{"a":' * 100_000, json.dumps({"image": [[[[0]]] * 20]}).encode()):
            started = time.process_time()  # of the service too, however busy the machine
            answer = await http.post("/v1/act", content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 400
            assert time.process_time() - started < 2
