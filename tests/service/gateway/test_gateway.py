"""The gateway's own parts: metrics of several processes as one text, chat's bytes passed on, health from control."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from edgeflow.ipc.packets import MAX_PACKET_BYTES, Packets, packet_pair
from edgeflow.service.children.messages import CODING, LogEvent
from edgeflow.service.frontends import control as control_module
from edgeflow.service.gateway import gateway as gateway_module
from edgeflow.service.gateway import proxy
from edgeflow.service.gateway.gateway import merge
from edgeflow.service.gateway.proxy import ChatSide
from edgeflow.service.http import body_reader
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow_client.errors import ResourceExhausted
from tests.service.harness import RunningService, eventually, serving
from tests.service.http.test_http import JSON_BODY
from tests.service.scripted import Script
from tests.service.security.test_limits import HEAD, connected

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


def test_metrics_of_several_processes_make_one_valid_text():
    texts = {}
    for name, count in (("control", 1), ("gateway", 2)):
        metrics = ProcessMetrics()
        metrics.limit_rejections.labels("http_headers").inc(count)
        texts[name] = b"".join(metrics.text_by_family()).decode()
        assert texts[name] == metrics.text().decode() or "process_cpu" in texts[name]
    texts["control"] += "# HELP edgeflow_own Only here\n# TYPE edgeflow_own gauge\nedgeflow_own 3.0\n"
    families = {family.name: family for family in text_string_to_metric_families(merge(texts))}
    samples = {sample.labels["process"]: sample.value for sample in families["process_open_fds"].samples}
    assert set(samples) == {"control", "gateway"}
    rejected = families["edgeflow_limit_rejections"].samples
    counted = {each.labels["process"]: each.value for each in rejected if each.name.endswith("_total")}
    assert counted == {"control": 1.0, "gateway": 2.0}
    assert [(each.labels, each.value) for each in families["edgeflow_own"].samples] == [({}, 3.0)]


@contextlib.asynccontextmanager
async def chat_side(checkpoint, folder: Path, talk: Talk) -> AsyncIterator[tuple[httpx.AsyncClient, RunningService]]:
    """A gateway whose chat front is the test."""
    path = str(folder / "chat")
    async with (
        await asyncio.start_unix_server(talk, path),
        serving(checkpoint, chat_path=path) as served,
        httpx.AsyncClient(base_url=served.http, timeout=20) as http,
    ):
        yield http, served


async def read_head(reader: asyncio.StreamReader) -> list[bytes]:
    return (await reader.readuntil(b"\r\n\r\n")).lower().splitlines()


async def test_a_caller_who_is_rejected_is_read_slowly(checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proxy, "REJECTED_BYTES_PER_S", 20_000)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if b"/internal/" not in head[0]:
            await reader.readexactly(20_000)
            writer.write(b"HTTP/1.1 400 No\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
        writer.close()

    async with chat_side(checkpoint, tmp_path, talk) as (http, _):
        began = time.monotonic()
        statuses = [(await http.post("/v1/chat/completions", content=bytes(20_000))).status_code for _ in range(2)]
        assert statuses == [400, 400]
        assert time.monotonic() - began >= 1.0  # the bytes of the first at the permitted rate
        asked = [http.post("/v1/chat/completions", content=bytes(20_000)) for _ in range(6)]
        answers = await asyncio.gather(*asked)
        assert {answer.status_code for answer in answers} == {400, 429}
        assert answers[-1].json()["error"]["code"] == "RESOURCE_EXHAUSTED"
        assert (await http.get("/v1/models")).status_code == 200


async def test_head_and_body_pass_on_and_names_of_the_gateway_s_own_do_not(checkpoint, tmp_path: Path):
    heads: list[list[bytes]] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if b"/internal/" not in head[0]:
            heads.append(head)
            body = await reader.readexactly(5)
            answer = b'{"got":"' + body + b'"}'
            writer.write(b"HTTP/1.1 418 Teapot\r\nx-own: 1\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)
            await writer.drain()
        writer.close()

    async with chat_side(checkpoint, tmp_path, talk) as (http, _):
        headers = {"x-edgeflow-principal": "boss", "x-request-id": "mine", "authorization": "Bearer secret"}
        answer = await http.post("/v1/chat/completions?a=b%20c", content=b"hello", headers=headers)
    assert (answer.status_code, answer.json(), answer.headers["x-own"]) == (418, {"got": "hello"}, "1")
    assert answer.headers["x-request-id"] == "mine"
    (head,) = heads
    assert head[0] == b"post /v1/chat/completions?a=b%20c http/1.1"
    assert b"x-edgeflow-principal: " in head and b"x-edgeflow-peer: 127.0.0.1" in head
    assert b"x-request-id: mine" in head
    assert not any(b"secret" in line or b"boss" in line for line in head)


async def test_a_missing_or_dead_chat_front_is_reported(checkpoint, tmp_path: Path):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if b"/tokenize" in head[0]:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
            await writer.drain()
        writer.close()

    async with chat_side(checkpoint, tmp_path, talk) as (http, _):
        answer = await http.post("/v1/completions", content=b"{}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "UNAVAILABLE")
        assert answer.headers["retry-after"]
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post("/tokenize", content=b"{}")
        (tmp_path / "chat").unlink()
        assert (await http.post("/v1/completions", content=b"{}")).status_code == 503


async def test_a_client_that_leaves_ends_its_request_at_the_chat_front(checkpoint, tmp_path: Path):
    left = asyncio.Event()
    asked = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if b"/v1/" in head[0]:
            asked.set()
            with contextlib.suppress(ConnectionError):
                while await reader.read(100):
                    pass
            left.set()
        writer.close()

    async with chat_side(checkpoint, tmp_path, talk) as (http, _):
        asking = asyncio.create_task(http.post("/v1/completions", content=b"{}"))
        await asyncio.wait_for(asked.wait(), 20)
        asking.cancel()
        await asyncio.wait_for(left.wait(), 20)


async def test_a_client_that_reads_nothing_loses_its_connection(
    checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gateway_module, "READER_S", 0.2)
    ended = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if b"/v1/" in head[0]:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(bytes(1 << 20))
                    await writer.drain()
            ended.set()
        writer.close()

    async with chat_side(checkpoint, tmp_path, talk) as (_, served), connected(served.http) as (reader, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.wait_for(ended.wait(), 20)
        await eventually(lambda: served.children.newest["gateway"]._in_flight.idle.is_set())  # type: ignore[union-attr]


async def test_an_observation_ends_with_its_client(checkpoint):
    script = Script(hold=True)
    async with (
        serving(checkpoint, script, timing__act_timeout_ms=600_000, timing__silent_end_ms=600_000) as served,
        httpx.AsyncClient(base_url=served.http, timeout=60) as http,
    ):
        asking = asyncio.create_task(http.post("/v1/act", json=JSON_BODY))
        await eventually(lambda: served.metric("edgeflow_sessions") == 1)
        asking.cancel()
        await eventually(lambda: served.metric("edgeflow_sessions") == 0)


async def test_large_bodies_that_trickle_keep_nobody_out(checkpoint):
    head = HEAD + b"content-length: 300000\r\n\r\n"
    large = json.dumps({**JSON_BODY, "model": "m" * 200_000})
    async with serving(checkpoint) as served, contextlib.AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(connected(served.http)) for _ in range(body_reader.LARGE_BODIES + 1)]
        for _, writer in slow[:-1]:
            writer.write(head + bytes(1000))
        slow[-1][1].write(head + bytes(200_000))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=served.http, timeout=20))
        answer = await http.post("/v1/act", content=large, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 404)
        assert (await slow[-1][0].readline()).startswith(b"HTTP/1.1 408 ")


async def test_places_for_large_bodies_are_few_per_address(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(body_reader, "LARGE_WAIT_S", 0.05)
    places = body_reader._BodyCapacity()
    async with contextlib.AsyncExitStack() as taken:
        for _ in range(body_reader.LARGE_PER_ADDRESS):
            await places.take("192.0.2.1", taken)
        with pytest.raises(ResourceExhausted):
            await places.take("192.0.2.1", taken)
        await places.take("192.0.2.2", taken)
    async with contextlib.AsyncExitStack() as taken:
        await places.take("192.0.2.1", taken)


async def test_health_is_control_s_last_word_for_two_seconds(checkpoint, monkeypatch: pytest.MonkeyPatch):
    async with serving(checkpoint) as served, httpx.AsyncClient(base_url=served.http) as http:
        await eventually(lambda: served.children.newest["gateway"]._control.state.ready)  # type: ignore[union-attr]
        assert (await http.get("/ready")).status_code == 200
        monkeypatch.setattr(control_module, "STALE_S", -1.0)
        assert (await http.get("/live")).status_code == (await http.get("/ready")).status_code == 503


async def test_internal_paths_are_not_passed_on(checkpoint):
    async with serving(checkpoint) as served, httpx.AsyncClient(base_url=served.http) as http:
        assert (await http.get("/internal/metrics")).status_code == 404
        answer = await http.post("/v1/chat/completions", content=b"{}")
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "no chat model is configured")


async def test_a_packet_that_is_too_long_is_not_sent():
    ours, theirs = packet_pair()
    try:
        packets = Packets(ours, CODING)
        assert not packets.send(LogEvent("long", "a" * MAX_PACKET_BYTES))
        assert packets.send(LogEvent("short", "a"))
        assert Packets(theirs, CODING).receive() == (LogEvent("short", "a"), [])
    finally:
        ours.close()
        theirs.close()


async def test_any_number_of_proprioceptive_values_passes(checkpoint):
    names = [f"{number:064}" for number in range(4096)]
    body = {**JSON_BODY, "proprio": dict.fromkeys(names, 0.0)}
    async with serving(checkpoint, limits__proprio=4096) as served, httpx.AsyncClient(base_url=served.http) as http:
        assert (await http.post("/v1/act", json=body)).status_code == 200


async def test_asking_a_chat_front_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(OSError):
        await ChatSide(str(tmp_path / "nowhere"), 1.0).get("/internal/models")
