"""Control's socket to the worker: whatever the socket takes at once, all arrives in order, and nothing is copied."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator

import numpy as np
import pytest

from edgeflow.contract import Chunk
from edgeflow.ipc.channel import BlockingChannel, ChannelClosed
from edgeflow.ipc.messages import FrameResult, Message, Ping, Pong, SubmitFrame, WorkerFailed
from edgeflow.service.chat.front import ChatPort
from edgeflow.service.worker.link import WorkerLink
from tests.service.harness import eventually

MIB = 1 << 20


class Ends:
    """A link and the worker's end of its socket. heard, writable, lost: what the link called."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.writable = 0
        self.lost: list[str] = []
        self.ours, theirs = socket.socketpair()
        self.worker = BlockingChannel(theirs)
        self.link = WorkerLink(self.heard.append, self._is_writable, self.lost.append)
        self.link.connect(self.ours)

    def _is_writable(self) -> None:
        assert self.link.writable
        self.writable += 1

    async def receive(self) -> Message:
        return await asyncio.to_thread(self.worker.receive)


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    yield made
    made.link.close()
    made.worker.close()


def frame(seq: int, *images: bytes | memoryview) -> SubmitFrame:
    return SubmitFrame(session=1, epoch=1, seq=seq, sizes=[], instruction="go", payload=images)


async def test_a_message_that_the_socket_takes_leaves_at_once(ends: Ends):
    ends.link.send(Ping(1))
    assert ends.link.writable and await ends.receive() == Ping(1)
    ends.worker.send(
        Pong(nonce=1, passes=0, rows=0, full_passes=0, pass_ns=[], pass_prefills=[], pass_decodes=[], pass_whole=[])
    )
    await eventually(lambda: len(ends.heard) == 1)
    assert ends.writable == 0


async def test_waiting_messages_leave_in_order_and_then_more_may_be_sent(ends: Ends):
    images = [bytes([index]) * (MIB + index) for index in range(3)]
    ends.link.send(frame(1, *images))
    ends.link.send(frame(2, b"x"))
    ends.link.send(Ping(3))
    assert not ends.link.writable
    first, second, third = [await ends.receive() for _ in range(3)]
    assert isinstance(first, SubmitFrame) and first.payload == b"".join(images)
    assert isinstance(second, SubmitFrame) and (second.payload, third) == (b"x", Ping(3))
    await eventually(lambda: ends.writable == 1)


async def test_pixels_that_wait_are_neither_copied_nor_joined(ends: Ends):
    images = [memoryview(np.zeros(8 * MIB, np.uint8)) for _ in range(3)]
    tracemalloc.start()
    try:
        ends.link.send(frame(1, *images))
        await asyncio.sleep(0)
        assert not ends.link.writable
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


async def test_pixels_are_sent_from_the_memory_of_the_caller(ends: Ends, monkeypatch):
    """The counting double: addresses of all buffers that the socket is handed."""
    handed: dict[int, int] = {}

    class RecordingLink(socket.socket):
        def sendmsg(self, buffers, *rest):  # type: ignore[no-untyped-def]
            for buffer in buffers:
                handed[np.frombuffer(buffer, np.uint8).ctypes.data] = len(buffer)
            return super().sendmsg(buffers, *rest)

    ours, theirs = socket.socketpair()
    recording = RecordingLink(fileno=ours.detach())
    link = WorkerLink(ends.heard.append, lambda: None, ends.lost.append)
    link.connect(recording)
    images = [np.full(3 * MIB, index, np.uint8) for index in range(2)]
    link.send(frame(1, *(memoryview(image) for image in images)))
    channel = BlockingChannel(theirs)
    received = await asyncio.to_thread(channel.receive)
    assert isinstance(received, SubmitFrame) and received.payload == b"".join(image.tobytes() for image in images)
    header = min(handed, key=lambda address: handed[address])
    for address in handed.keys() - {header}:
        assert any(0 <= address - image.ctypes.data < image.nbytes for image in images)
    assert {image.ctypes.data for image in images} <= handed.keys()
    link.close()
    channel.close()


async def test_the_end_of_the_worker_is_announced_once_and_drops_what_waits(ends: Ends):
    ends.link.send(frame(1, bytes(8 * MIB)))
    ends.worker.close()
    await eventually(lambda: ends.lost == ["eof"])
    ends.link.send(Ping(1))
    ends.link.close("hung")
    assert not ends.link.writable
    await asyncio.sleep(0)
    assert (ends.lost, ends.writable) == (["eof"], 0)


async def test_foreign_bytes_end_the_connection(ends: Ends):
    ends.worker._sock.sendall(b"\xff" * 64)
    await eventually(lambda: ends.lost == ["protocol"])


async def test_closing_is_announced_in_the_next_turn_with_its_reason(ends: Ends):
    ends.link.close("hung")
    assert ends.lost == []
    await eventually(lambda: ends.lost == ["hung"])
    with pytest.raises(ChannelClosed):
        await ends.receive()


async def test_an_answer_in_pieces_is_read_whole(ends: Ends):
    answer = FrameResult(
        session=1,
        epoch=1,
        seq=1,
        chunk=Chunk(tuple(float(index) for index in range(70_000)), 1000, 20.0),
        token_ids=[],
        valid=True,
        queue_ns=0,
        inference_ns=0,
        passes=1,
        settled=0,
    )
    await asyncio.to_thread(lambda: [ends.worker.send(answer) for _ in range(2)])
    await eventually(lambda: len(ends.heard) == 2)
    assert ends.heard == [answer, answer]


@pytest.mark.parametrize("unread", [False, True])
async def test_the_last_messages_of_a_worker_are_read_after_a_failed_send(ends: Ends, unread: bool):
    words = WorkerFailed(kind="CheckpointError", text="x" * (50 << 10))
    if unread:
        ends.link.send(Ping(0))
    ends.worker.send(words)
    ends.worker.close()
    ends.link.send(Ping(1))
    ends.link.send(Ping(2))
    assert not ends.link.writable
    await eventually(lambda: ends.lost == ["eof"])
    assert ends.heard == [words] and ends.writable == 0


async def test_last_words_are_heard_though_a_message_is_half_sent(ends: Ends):
    words = WorkerFailed(kind="StartError", text="no memory")
    ends.link.send(frame(1, bytes(8 * MIB)))
    ends.worker.send(words)
    ends.worker.close()
    await eventually(lambda: ends.lost == ["eof"])
    assert ends.heard == [words] and ends.writable == 0


async def test_a_socket_that_cannot_be_used_is_closed(ends: Ends, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError("no more descriptors can be watched")

    link = WorkerLink(ends.heard.append, lambda: None, ends.lost.append)
    ours, theirs = socket.socketpair()
    port = ChatPort()
    fronts, workers = socket.socketpair()
    with theirs, workers, monkeypatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "add_reader", full)
        with pytest.raises(OSError):
            link.connect(ours)
        port.attach(fronts)
        assert theirs.recv(1) == workers.recv(1) == b""
    assert not port.attached and not link.writable
