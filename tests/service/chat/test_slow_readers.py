"""A reader that stops ends nobody's turn but its own, and holds little memory."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from edgeflow.config.chat import ChatConfig
from edgeflow.service.chat import queue
from edgeflow.service.chat.front import ChatPort, ChatProcess
from edgeflow.service.chat.queue import ChatQueue, QueueTurn
from edgeflow.service.chat.routes import EventQueue
from edgeflow.service.gateway import proxy
from edgeflow.service.http.protocol import Connection
from edgeflow.service.observe.log import EventLog
from edgeflow.service.observe.process_metrics import ChatMetrics
from edgeflow.service.security.auth import Caller
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import ResourceExhausted
from edgeflow_client.reasons import Reason
from tests.service.chat.test_answers import ASKED, CHAT
from tests.service.chat.workers import Loaded, chat_of, chatting
from tests.service.harness import RunningService, eventually

LIMIT_S = 1.0
MUCH = {**ASKED, "max_tokens": 150, "n": 4, "logprobs": True, "top_logprobs": 5, "stream": True, "seed": 1}


@contextlib.asynccontextmanager
async def never_reading(served: RunningService, body: dict[str, Any]) -> AsyncIterator[socket.socket]:
    """A client with a small receive buffer that sends a request and reads nothing."""
    host, _, port = served.http.removeprefix("http://").rpartition(":")
    data = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, (host, int(port)))
        await loop.sock_sendall(sock, head.encode() + f"content-length: {len(data)}\r\n\r\n".encode() + data)
        yield sock


async def test_the_turn_passes_on_once_the_model_is_done_although_nobody_reads(text_model: Loaded):
    async with (
        chatting(text_model, chat__queue_ms=60_000) as (http, served),
        never_reading(served, MUCH),
    ):
        await eventually(lambda: served.metric("edgeflow_chat_requests_running") == 1)
        answer = await http.post(CHAT, json=ASKED)
        assert answer.status_code == 200
        assert served.metric("edgeflow_chat_tokens_total", kind="answer") >= 4 * 100


async def test_a_reader_that_stops_does_not_delay_another_request(
    text_model: Loaded, narrow: None, monkeypatch: pytest.MonkeyPatch
):
    """At the default time limits, of which the other request would meet that of the queue."""
    monkeypatch.setattr(queue, "PATIENCE_S", 0.05)
    async with chatting(text_model) as (http, served):
        chat = chat_of(served)
        chat.front.unread_bytes = 4096
        async with never_reading(served, MUCH):
            await eventually(lambda: served.metric("edgeflow_chat_requests_running") == 1)
            stopped = reader_of(chat)
            await eventually(lambda: stopped.get_write_buffer_size() > 1024)
            answer = await http.post(CHAT, json={**ASKED, "max_tokens": 1})
            assert answer.status_code == 200
            assert served.metric("edgeflow_chat_tokens_total", kind="answer") < 4 * 150
            assert served.metric("edgeflow_chat_refused_total", reason="SLOW_READER") == 1
            await eventually(lambda: not served.script.worker.busy)


async def test_a_reader_that_stops_ends_its_own_answer_at_the_time_limit(text_model: Loaded, narrow: None):
    async with chatting(text_model, chat__request_s=LIMIT_S) as (_, served):
        chat = chat_of(served)
        chat.front.unread_bytes = 4096
        async with never_reading(served, MUCH):
            await eventually(lambda: served.metric("edgeflow_chat_requests_running") == 1)
            stopped = reader_of(chat)
            await eventually(lambda: served.metric("edgeflow_chat_requests_running") == 0)
            assert served.metric("edgeflow_chat_tokens_total", kind="answer") < 4 * 150
            await eventually(stopped.is_closing)


async def test_a_reader_may_take_its_time_while_nobody_waits():
    """And once others wait, what it took before counts."""
    clock = ManualClock(1)
    chat = ChatQueue(ChatConfig(), ChatPort().send, clock, ChatMetrics(), EventLog(clock, io.StringIO()))
    turn, read = QueueTurn(1, 1, Caller("peer")), asyncio.Event()

    async def room() -> None:
        clock.advance_ns(round(10 * queue.PATIENCE_S * 1e9))
        await read.wait()

    waits = asyncio.create_task(chat.wait_for_reader(room, turn))
    await eventually(lambda: clock.now_ns() > 1)
    read.set()
    await waits
    read.clear()
    chat._wanted.set()
    with pytest.raises(ResourceExhausted, match="another request waits") as caught:
        await chat.wait_for_reader(room, turn)
    assert caught.value.reason == Reason.SLOW_READER


def reader_of(chat: ChatProcess) -> asyncio.Transport:
    """The chat front's connection to its only reader."""
    connections = chat._http._server.server_state.connections
    (protocol,) = [each for each in connections if each.scope["path"] == CHAT]  # the gateway asks for metrics, too
    transport: asyncio.Transport = protocol.transport
    return transport


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave little room between the chat front and its readers: the system would take in a whole answer."""
    made = Connection.connection_made

    def narrowed(self: Connection, transport: Any) -> None:
        made(self, transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        transport.set_write_buffer_limits(1024)

    monkeypatch.setattr(proxy, "PIECE_BYTES", 4096)
    monkeypatch.setattr(Connection, "connection_made", narrowed)


async def test_there_is_room_after_the_reader_took_something():
    outgoing, full = EventQueue(most=10), asyncio.Event()

    async def produce() -> None:
        outgoing.add("x" * 10)
        assert outgoing.full
        full.set()
        await outgoing.room()
        outgoing.add("y")

    outgoing.begin(produce())
    await outgoing.first()
    await full.wait()
    assert [chunk async for chunk in outgoing.chunks()] == [b"x" * 10, b"y"]
    await outgoing.close()
