"""Messages between front and worker survive the trip, and nothing else gets through."""

from __future__ import annotations

import socket

import msgpack
import pytest

from edgeflow.errors import WorkerError
from edgeflow.ipc.channel import MAX_PAYLOAD_BYTES, PREFIX, BlockingChannel, ChannelClosed
from edgeflow.ipc.coding import decode, encode
from edgeflow.ipc.messages import (
    FrameResult,
    Message,
    OpenSession,
    Ping,
    Shutdown,
    SubmitFrame,
    schema_fields,
    schema_of,
)
from edgeflow.types import ActionSchema

MESSAGES: list[Message] = [
    OpenSession(1, 2, 7, ""),
    SubmitFrame(1, 2, 3, 4, 5, "pick the cup", bytes(range(60))),
    FrameResult(1, 2, 3, [0.5, -1.0], [511, 300], True, 1, 2, 7),
    Shutdown(),
]


@pytest.fixture
def channels():
    ours, theirs = socket.socketpair()
    pair = BlockingChannel(ours), BlockingChannel(theirs)
    yield pair
    for channel in pair:
        channel.close()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message: Message):
    assert decode(*encode(message)) == message


def test_messages_cross_a_socket_in_order(channels):
    front, worker = channels
    for message in MESSAGES:
        front.send(message)
    assert [worker.receive() for _ in MESSAGES] == MESSAGES


def test_the_other_side_going_ends_a_receive(channels):
    front, worker = channels
    front.close()
    with pytest.raises(ChannelClosed):
        worker.receive()


@pytest.mark.parametrize(
    "header", [b"\xc1", msgpack.packb([99]), msgpack.packb([0, 1]), msgpack.packb("text"), msgpack.packb([])]
)
def test_foreign_headers_are_refused(header: bytes):
    with pytest.raises(WorkerError):
        decode(header, b"")


def test_a_length_beyond_the_limit_is_refused_before_it_is_read():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(PREFIX.pack(8, MAX_PAYLOAD_BYTES + 1))
        with pytest.raises(WorkerError, match="bytes between front and worker"):
            BlockingChannel(theirs).receive()


def test_reader_thread_delivers_and_tells_the_end(channels):
    front, worker = channels
    seen: list[Message] = []
    ended: list[bool] = []
    thread = worker.read_forever(seen.append, lambda: ended.append(True))
    front.send(Ping(7))
    front.close()
    thread.join(timeout=10)
    assert (seen, ended) == ([Ping(7)], [True])


def test_schema_crosses_as_plain_lists():
    schema = ActionSchema(("x",), ("m",), (-1.0,), (1.0,), (True,), "tool", "rotvec")
    assert schema_of(msgpack.unpackb(msgpack.packb(schema_fields(schema)))) == schema
