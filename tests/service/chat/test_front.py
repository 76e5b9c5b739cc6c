"""The chat front by itself: what control and gateway tell it, what it reads at a time, and what its successor knows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgeflow.ipc.chat_messages import ChatReady, ChatStart, PrefixSet, SetPrefix
from edgeflow.ipc.messages import Message
from edgeflow.ipc.packets import Packets, close_all, packet_pair, seal, unseal
from edgeflow.service.chat import front, intake
from edgeflow.service.chat.front import ChatProcess
from edgeflow.service.children.messages import (
    CODING,
    AccessPolicy,
    ChatSocket,
    ChildMessage,
    Drain,
    Drained,
    Heartbeat,
    LogEvent,
    RequestSocket,
    SavedState,
    SaveState,
    Serving,
)
from edgeflow.service.children.start import ChildStart
from edgeflow.service.worker.link import WorkerLink
from tests.service.chat.test_answers import ASKED, CHAT, SLOTS
from tests.service.chat.workers import Loaded
from tests.service.harness import config, eventually
from tests.worker.test_chat_link import READY, done

ALICE = {"x-edgeflow-peer": "192.0.2.7", "x-edgeflow-principal": "alice", "x-edgeflow-token": "a" * 64}
READY_HERE = ChatReady(**{name: getattr(READY, name) for name in READY.__slots__ if name != "slots"}, slots=["arm"])


class Alone:
    """A chat front whose control, gateway and worker are the test. silent: the worker answers nothing."""

    ready = READY_HERE

    def __init__(self, loaded: Loaded, folder: Path, **settings: Any) -> None:
        self.heard: list[ChildMessage] = []
        self.asked: list[Message] = []
        self.kept: dict[str, bytes] = {}
        self.silent = False
        self.path = str(folder / "chat")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path)
        listener.listen()
        ours, theirs = packet_pair()
        self._control: Packets[ChildMessage] = Packets(ours, CODING)
        chat = {"chat__model": str(loaded.path), "chat__alias": "small", "chat__slots": SLOTS[:1]}
        made = ChildStart(role="chat", control=theirs, listener=listener, chat_path=self.path, config=folder)
        self.process = ChatProcess(made, config(**{**chat, **settings}))
        self.worker: WorkerLink | None = None

    async def connect(self) -> None:
        """A new worker, or the old one with a new socket."""
        fronts, workers = socket.socketpair()
        with fronts:
            self.tell(ChatSocket(), fronts.fileno())
        link = self.worker = WorkerLink(lambda message: self._answer(link, message), lambda: None, lambda _: None)
        link.connect(workers)
        link.send(self.ready)
        await eventually(lambda: self.process.queue.ready is not None)

    def tell(self, message: ChildMessage, *descriptors: int) -> None:
        assert self._control.send(message, descriptors)

    def tell_sealed(self, message: ChildMessage, data: bytes) -> None:
        descriptor = seal(data)
        self.tell(message, descriptor)
        close_all([descriptor])

    def of(self, kind: type) -> list[Any]:
        """What control heard; lines of the log are read too."""
        with contextlib.suppress(EOFError):
            while (found := self._control.receive()) is not None:
                message, descriptors = found
                if isinstance(message, SaveState):
                    self.kept[message.key] = bytes(unseal(descriptors[0], 1 << 20))
                close_all(descriptors)
                self.heard.append(message)
        return [message for message in self.heard if isinstance(message, kind)]

    def _answer(self, link: WorkerLink, message: Message) -> None:
        self.asked.append(message)
        if self.silent:
            return
        match message:
            case ChatStart():
                link.send(done(message.request))
            case SetPrefix():
                link.send(PrefixSet(message.request, message.slot, len(message.ids)))

    def close(self) -> None:
        self._control.close()
        if self.worker is not None:
            self.worker.close()


@contextlib.asynccontextmanager
async def alone(
    loaded: Loaded, folder: Path, kind: type[Alone] = Alone, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Alone]]:
    made = kind(loaded, folder, **settings)
    running = asyncio.create_task(made.process.run())
    try:
        made.tell_sealed(AccessPolicy(False), b"[]")
        await eventually(lambda: bool(made.of(Serving)))
        await made.connect()
        transport = httpx.AsyncHTTPTransport(uds=made.path)
        async with httpx.AsyncClient(transport=transport, base_url="http://chat", headers=ALICE) as http:
            yield http, made
    finally:
        made.close()
        assert await running == 0


async def test_it_answers_the_callers_that_the_gateway_names(text_model: Loaded, tmp_path: Path):
    async with alone(text_model, tmp_path) as (http, made):
        answer = await http.post(CHAT, json=ASKED, headers={"x-request-id": "abc.1"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "abc.1")
        assert b"edgeflow_chat_requests_running 0.0" in (await http.get("/internal/metrics")).content
        assert [entry["id"] for entry in (await http.get("/internal/models")).json()] == ["small", "small:arm"]
        for path, status in (("/nothing", 404), (CHAT, 405)):
            rejected = await http.get(path)
            assert rejected.status_code == status and rejected.json()["error"]["message"]
        rejected = await http.post(CHAT, content=b"x", headers={"content-encoding": "gzip"})
        assert rejected.status_code == 415
        assert len(made.of(Heartbeat)) > 0


async def test_it_asks_for_another_socket_when_the_worker_s_end_is_lost(
    text_model: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(front, "CHECK_S", 0.01)
    async with alone(text_model, tmp_path) as (http, made):
        assert made.worker is not None and not made.of(RequestSocket)
        made.worker.close()
        await eventually(lambda: bool(made.of(RequestSocket)))
        assert (await http.post(CHAT, json=ASKED)).status_code == 503
        await made.connect()
        assert (await http.post(CHAT, json=ASKED)).status_code == 200


async def test_a_revoked_token_ends_its_answers(text_model: Loaded, tmp_path: Path):
    async with alone(text_model, tmp_path) as (http, made):
        made.silent = True
        asking = asyncio.create_task(http.post(CHAT, json=ASKED))
        await eventually(lambda: any(isinstance(message, ChatStart) for message in made.asked))
        made.tell_sealed(AccessPolicy(True), b"[]")
        assert (await asking).status_code == 401


async def test_it_rejects_new_work_first_and_says_when_it_is_done(text_model: Loaded, tmp_path: Path):
    async with alone(text_model, tmp_path) as (http, made):
        made.silent = True
        asking = asyncio.create_task(http.post(CHAT, json=ASKED))
        await eventually(lambda: bool(made.asked))
        made.tell(Drain(60_000))
        await eventually(lambda: made.process.queue.draining)
        assert (await http.post(CHAT, json=ASKED)).status_code == 503
        assert not made.of(Drained) and not asking.done()
        (start,) = made.asked
        assert isinstance(start, ChatStart) and made.worker is not None
        made.worker.send(done(start.request))
        assert (await asking).status_code == 200
        await eventually(lambda: bool(made.of(Drained)))


async def test_a_changed_prefix_is_kept_for_its_successor(text_model: Loaded, tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    new = [{"role": "system", "content": "you watch a red cup"}]
    async with alone(text_model, tmp_path / "a") as (http, made):
        assert (await http.put("/admin/v1/prefixes/arm", json={"messages": new})).status_code == 200
        await eventually(lambda: bool(made.of(SaveState)))
        kept = made.kept
        assert list(kept) == ["arm"] and json.loads(kept["arm"])["messages"] == new
        before = [message for message in made.asked if isinstance(message, SetPrefix)]
    async with alone(text_model, tmp_path / "b") as (http, made):
        made.tell_sealed(SavedState("arm"), kept["arm"])
        made.tell_sealed(SavedState("unknown"), kept["arm"])
        made.tell_sealed(SavedState("arm"), b"not JSON")
        await eventually(lambda: any(isinstance(message, SetPrefix) for message in made.asked))
        (again,) = [message for message in made.asked if isinstance(message, SetPrefix)]
        assert again.ids == before[0].ids
        assert (await http.get("/admin/v1/prefixes")).json()["data"][0]["messages"] == new
        assert (await http.delete("/admin/v1/prefixes/arm")).status_code == 200
        await eventually(lambda: bool(made.of(SaveState)))
        removed = made.kept["arm"]
        await made.connect()
        await eventually(lambda: made.asked[-1] == SetPrefix(made.asked[-1].request, "arm", []))
    (tmp_path / "c").mkdir()
    async with alone(text_model, tmp_path / "c") as (http, made):
        made.tell_sealed(SavedState("arm"), removed)
        await eventually(lambda: any(isinstance(message, SetPrefix) for message in made.asked))
        assert (await http.get("/admin/v1/prefixes")).json()["data"][0] == {
            "id": "arm",
            "object": "prefix",
            "tokens": 0,
        }


async def test_a_lost_worker_ends_its_answers_and_the_next_one_continues(text_model: Loaded, tmp_path: Path):
    async with alone(text_model, tmp_path) as (http, made):
        made.silent = True
        asking = asyncio.create_task(http.post(CHAT, json=ASKED))
        await eventually(lambda: bool(made.asked))
        old = made.worker
        await made.connect()
        assert (await asking).status_code == 503 and old is not None
        made.silent = False
        assert (await http.post(CHAT, json=ASKED)).status_code == 200


async def test_one_large_body_is_read_at_a_time(text_model: Loaded, tmp_path: Path):
    large = json.dumps({**ASKED, "user": "u" * 2_000_000}).encode()
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield large[:1_000_000]
        await release.wait()
        yield large[1_000_000:]

    async with alone(text_model, tmp_path, chat__queue_ms=100) as (http, made):
        http.headers["content-type"] = "application/json"
        first = asyncio.create_task(http.post(CHAT, content=slowly()))
        await eventually(lambda: made.process.front.intake.busy)
        second = await http.post(CHAT, content=large)
        assert (second.status_code, second.headers["retry-after"]) == (429, "1")
        assert (await http.post(CHAT, json=ASKED)).status_code == 200, "small ones pass"
        release.set()
        assert (await first).status_code == 400, "the field is too long, and that was found once it was read"
        assert not made.process.front.intake.busy


async def test_a_body_that_does_not_arrive_gives_its_turn_up(text_model: Loaded, tmp_path: Path):
    async with alone(text_model, tmp_path, timing__http_body_ms=100) as (_, made):
        reader, writer = await asyncio.open_unix_connection(made.path)
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: chat\r\ncontent-type: application/json\r\ncontent-length: 2000000\r\n\r\n"
        )
        writer.write(head.encode() + b"[" * 1_000_000)
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        assert not made.process.front.intake.busy
        writer.close()


async def test_a_slow_large_body_gives_its_turn_to_others(
    text_model: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(intake, "TURN_S", 0.1)
    large = json.dumps({**ASKED, "user": "u" * 2_000_000}).encode()
    async with alone(text_model, tmp_path, chat__queue_ms=5000) as (http, made):
        reader, writer = await asyncio.open_unix_connection(made.path)
        head = f"POST {CHAT} HTTP/1.1\r\nhost: chat\r\ncontent-length: 2000000\r\n\r\n"
        writer.write(head.encode() + b"[" * 1_000_000)
        await eventually(lambda: made.process.front.intake.busy)
        second = await http.post(CHAT, content=large, headers={"content-type": "application/json"})
        assert second.status_code == 400, "it was read"
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_a_bug_is_an_incident(text_model: Loaded, tmp_path: Path):
    async with alone(text_model, tmp_path) as (http, made):
        made.process.front.text = None
        made.process.queue.ready = None
        made.process.front.ask = None
        answer = await http.post(CHAT, json=ASKED)
        assert answer.status_code == 500
        await eventually(lambda: any(event.name == "incident" for event in made.of(LogEvent)))
        (line,) = [json.loads(event.values) for event in made.of(LogEvent) if event.name == "incident"]
        assert line["incident"] in answer.json()["error"]["message"]
