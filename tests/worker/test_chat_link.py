"""Chat's own socket to the worker: bounded, never waited for, and whoever is at its other end may go at any time."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from edgeflow.config.chat import MOST_TOKENS
from edgeflow.contract import Pace
from edgeflow.ipc.channel import BlockingChannel, ChannelClosed
from edgeflow.ipc.chat_messages import (
    ChatDone,
    ChatReady,
    ChatRejected,
    ChatStart,
    ChatStop,
    ChatToken,
    LongSlots,
    PrefixSet,
    SetPrefix,
)
from edgeflow.ipc.framing import PREFIX
from edgeflow.ipc.messages import CloseSession, Message, OpenSession, Ping
from edgeflow.worker.chat_link import MAX_REQUESTS, MAX_UNSENT_BYTES, MAX_WAITING, ChatLink
from edgeflow.worker.inbox import CHAT_PER_TURN, Inbox
from tests.engine.chat.test_loop import request_of

PATIENCE_S = 30.0
READY = ChatReady(
    model="small",
    family="test",
    model_fingerprint="f",
    images=False,
    length=2000,
    capacity=2000,
    long=None,
    slots=[],
    slot_bytes=0,
    kv_bytes=0,
    step_ns=1,
    row_ns=1,
    sampling=[0.0, 1.0, 0.0, 1.0],
    top_k=0,
    numbers="",
)


def done(request: int) -> ChatDone:
    return ChatDone(
        request=request,
        reason="stop",
        prompt_tokens=1,
        answer_tokens=1,
        reused=0,
        slot="",
        queue_ns=0,
        prefill_ns=0,
        decode_ns=0,
    )


def picture(request: int, side: int = 64) -> ChatStart:
    start = request_of([1], request)
    return ChatStart(
        **{name: getattr(start, name) for name in ChatStart.__slots__ if name not in ("sizes", "payload")},
        sizes=[side, side],
        payload=bytes(3 * side * side),
    )


class ChatLinkBench:
    """A link whose loop is the test."""

    def __init__(self, ready: ChatReady | None = READY) -> None:
        self.inbox = Inbox()
        self.handover, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link = ChatLink(theirs)
        self.link.serve(self.inbox, ready)
        self.fronts: list[BlockingChannel] = []

    def front(self) -> BlockingChannel:
        """A new chat front, that has been greeted."""
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE_S)
        with theirs:
            socket.send_fds(self.handover, [b"c"], [theirs.fileno()])
        front = BlockingChannel(ours)
        ours.settimeout(PATIENCE_S)
        self.fronts.append(front)
        return front

    def greeted(self) -> BlockingChannel:
        front = self.front()
        assert front.receive() == READY
        return front

    def chat(self, count: int) -> list[Message]:
        """The next messages for the loop."""
        found: list[Message] = []
        while len(found) < count:
            self.inbox.wait(PATIENCE_S)
            taken = self.inbox.drain().chat
            assert taken, "nothing came"
            found += taken
        assert len(found) == count
        return found

    def close(self) -> None:
        self.link.close()
        self.handover.close()
        for front in self.fronts:
            front.close()


@pytest.fixture
def bench() -> Iterator[ChatLinkBench]:
    with contextlib.closing(ChatLinkBench()) as made:
        yield made


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        select.select([], [], [], 0.001)


def ends(front: BlockingChannel) -> bool:
    with pytest.raises(ChannelClosed):
        front.receive()
    return True


def test_requests_and_answers_pass_under_the_numbers_of_each_side(bench: ChatLinkBench):
    front = bench.greeted()
    front.send(request_of([1, 2], 70))
    front.send(SetPrefix(71, "arm", [3]))
    front.send(ChatStop(70, cancelled=False))
    start, change, stop = bench.chat(3)
    assert isinstance(start, ChatStart) and isinstance(change, SetPrefix)
    assert start.ids == [1, 2] and stop == ChatStop(start.request, cancelled=False)
    bench.link.send(ChatToken(start.request, 5, [], []))
    bench.link.send(done(start.request))
    bench.link.send(PrefixSet(change.request, "arm", 1))
    assert [front.receive() for _ in range(3)] == [ChatToken(70, 5, [], []), done(70), PrefixSet(71, "arm", 1)]


def test_a_prompt_of_the_longest_length_passes_whatever_a_slot_holds():
    """Ids of the largest vocabularies take 5 bytes each."""
    ready = replace(
        READY, length=MOST_TOKENS, capacity=32, long=LongSlots(sink=4, window=6, segment=10, memory_bytes=1)
    )
    with contextlib.closing(ChatLinkBench(ready)) as bench:
        front = bench.front()
        assert front.receive() == ready
        ids = list(range(1 << 31, (1 << 31) + MOST_TOKENS))
        front.send(request_of(ids))
        (start,) = bench.chat(1)
        assert isinstance(start, ChatStart) and start.ids == ids


def test_messages_of_control_come_first_and_few_of_chat_at_a_time(bench: ChatLinkBench):
    front = bench.greeted()
    for number in range(20):
        front.send(SetPrefix(number, "arm", []))
    eventually(lambda: bench.inbox.chat_waiting == MAX_WAITING)
    bench.inbox.put(Ping(1))
    drained = bench.inbox.drain()
    assert drained.messages == [Ping(1)] and len(drained.chat) == CHAT_PER_TURN
    bench.inbox.put(CloseSession(1))
    assert bench.inbox.drain().messages == [CloseSession(1)]
    bench.chat(20 - 2 * CHAT_PER_TURN)


def test_no_more_is_read_than_is_answered(bench: ChatLinkBench):
    front = bench.greeted()
    for number in range(MAX_REQUESTS + 1):
        front.send(SetPrefix(number, "arm", []))
    first = bench.chat(MAX_REQUESTS)
    front.send(ChatStop(0, cancelled=True))
    assert bench.inbox.chat_waiting == 0
    assert isinstance(first[0], SetPrefix)
    bench.link.send(PrefixSet(first[0].request, "arm", 0))
    assert isinstance(bench.chat(1)[0], SetPrefix)


def test_one_payload_is_held_at_a_time(bench: ChatLinkBench):
    front = bench.greeted()
    front.send(picture(1))
    front.send(picture(2))
    (first,) = bench.chat(1)
    assert isinstance(first, ChatStart) and len(first.payload) == 3 * 64 * 64
    bench.inbox.wait(0.05)
    assert bench.inbox.chat_waiting == 0
    bench.link.send(done(first.request))
    assert isinstance(bench.chat(1)[0], ChatStart)


def test_a_reader_that_stops_ends_its_answer_and_gets_the_error_when_it_reads(bench: ChatLinkBench):
    front = bench.greeted()
    front.send(request_of([1], 9))
    (start,) = bench.chat(1)
    assert isinstance(start, ChatStart)
    token = ChatToken(start.request, 5, [0.5] * 100, [1] * 99)
    started, sent = time.thread_time(), 0
    while not bench.inbox.chat_waiting:
        bench.link.send(token)
        sent += 1
        assert sent < 10_000, "nobody reads, and the answer goes on"
    assert time.thread_time() - started < PATIENCE_S
    assert bench.chat(1) == [ChatStop(start.request, cancelled=True)]
    bench.link.send(token)
    bench.link.send(done(start.request))
    last: Message = ChatToken(0, 0, [], [])
    received = 0
    while isinstance(last, ChatToken):
        last, received = front.receive(), received + 1
    assert isinstance(last, ChatRejected) and (last.request, last.code) == (9, "RESOURCE_EXHAUSTED")
    assert last.reason == "SLOW_READER" and str(MAX_UNSENT_BYTES) in last.text
    assert received == sent, "the tokens that were sent, but for the one that did not fit, and the refusal"
    front.send(request_of([1], 10))
    assert isinstance(bench.chat(1)[0], ChatStart)


def test_a_slow_reader_learns_why_even_if_its_request_is_rejected_in_the_end(bench: ChatLinkBench):
    front = bench.greeted()
    front.send(request_of([1], 9))
    (start,) = bench.chat(1)
    assert isinstance(start, ChatStart)
    while not bench.inbox.chat_waiting:
        bench.link.send(ChatToken(start.request, 5, [0.5] * 100, [1] * 99))
    bench.link.send(ChatRejected(start.request, "INTERNAL", "the memory is exhausted", "", ""))
    last: Message = ChatToken(0, 0, [], [])
    while isinstance(last, ChatToken):
        last = front.receive()
    assert isinstance(last, ChatRejected) and (last.request, last.reason) == (9, "SLOW_READER")


def test_an_unexpected_error_ends_the_socket_but_not_the_link(bench: ChatLinkBench, monkeypatch: pytest.MonkeyPatch):
    front = bench.greeted()
    with monkeypatch.context() as patch:

        def fail(connection: object) -> None:
            raise MemoryError

        patch.setattr(bench.link, "_read", fail)
        front.send(request_of([1], 9))
        assert ends(front)
    front = bench.greeted()
    front.send(request_of([1], 10))
    assert isinstance(bench.chat(1)[0], ChatStart)


def test_the_end_of_a_chat_front_ends_its_requests(bench: ChatLinkBench):
    front = bench.greeted()
    front.send(request_of([1], 3))
    (start,) = bench.chat(1)
    assert isinstance(start, ChatStart)
    front.close()
    assert bench.chat(1) == [ChatStop(start.request, cancelled=True)]
    bench.link.send(done(start.request))
    bench.greeted()


def test_a_newer_chat_front_replaces_the_older_and_gets_none_of_its_answers(bench: ChatLinkBench):
    old = bench.greeted()
    old.send(request_of([1], 3))
    (start,) = bench.chat(1)
    assert isinstance(start, ChatStart)
    new = bench.greeted()
    assert ends(old)
    assert bench.chat(1) == [ChatStop(start.request, cancelled=True)]
    new.send(request_of([2], 3))
    (next_start,) = bench.chat(1)
    assert isinstance(next_start, ChatStart) and next_start.request != start.request
    bench.link.send(ChatToken(start.request, 5, [], []))
    bench.link.send(done(start.request))
    bench.link.send(done(next_start.request))
    assert new.receive() == done(3)


def test_a_message_that_a_chat_front_may_not_send_ends_its_socket(bench: ChatLinkBench):
    wrong = (
        OpenSession(session=1, epoch=1, pace=Pace(1), unnorm_key=""),
        ChatStart(**{name: getattr(picture(1), name) for name in ChatStart.__slots__ if name != "sizes"}, sizes=[64]),
        SetPrefix(1, "arm", [1 << 30] * 40_000),
    )
    for message in wrong:
        front = bench.greeted()
        with contextlib.suppress(ChannelClosed):
            front.send(message)
        assert ends(front)
    for lengths in ((1 << 30, 0), (8, 1 << 31), (0, 0)):
        front = bench.greeted()
        front._sock.sendall(PREFIX.pack(*lengths))
        assert ends(front)
    assert bench.inbox.chat_waiting == 0


def test_without_a_chat_model_nothing_is_read():
    with contextlib.closing(ChatLinkBench(None)) as bench:
        front = bench.front()
        front.send(request_of([1]))
        bench.front()
        assert ends(front)
        assert bench.inbox.chat_waiting == 0


def test_a_message_with_other_than_one_descriptor_changes_nothing(bench: ChatLinkBench):
    front = bench.greeted()
    bench.handover.send(b"c")
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(bench.handover, [b"c"], [theirs.fileno(), theirs.fileno()])
    assert ours.recv(1) == b""
    ours.close()
    front.send(request_of([1]))
    assert isinstance(bench.chat(1)[0], ChatStart)
