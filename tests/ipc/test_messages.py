"""Messages between front and worker survive the trip, and nothing else gets through."""

from __future__ import annotations

import socket
from dataclasses import is_dataclass

import msgpack
import pytest

from edgeflow.contract import Chunk, Pace, PassTimes, Speculation
from edgeflow.ipc.channel import BlockingChannel, ChannelClosed
from edgeflow.ipc.chat_messages import ChatDone
from edgeflow.ipc.coding import decode, encode
from edgeflow.ipc.framing import MAX_PAYLOAD_BYTES, PREFIX
from edgeflow.ipc.messages import (
    Begin,
    FrameResult,
    Message,
    OpenSession,
    Ping,
    SessionOpened,
    Shutdown,
    SubmitFrame,
)
from edgeflow_client import types
from edgeflow_client.errors import WorkerError
from edgeflow_client.types import ActionSchema

SCHEMA = ActionSchema(
    names=("x",),
    units=("m",),
    low=(-1.0,),
    high=(1.0,),
    relative=(True,),
    frame="tool",
    rotation="rotvec",
    control_rate_hz=5.0,
)
SCHEMA_VALUES = [["x"], ["m"], [-1.0], [1.0], [True], "tool", "rotvec", 5.0]
TIMES = PassTimes(stages=7, prefill_ns=1, two_prefills_ns=2, packed_ns=3, decode_ns=4, decodes_ns=5)
MESSAGES: list[Message] = [
    Begin(TIMES),
    SessionOpened(1, SCHEMA),
    OpenSession(session=1, epoch=2, pace=Pace(7), unnorm_key=""),
    OpenSession(session=1, epoch=2, pace=Pace(0, Speculation(1, 3)), unnorm_key="", patience_ns=5),
    SubmitFrame(session=1, epoch=2, seq=3, sizes=[4, 5], instruction="pick the cup", payload=bytes(range(60))),
    FrameResult(
        session=1,
        epoch=2,
        seq=3,
        chunk=Chunk((0.5, -1.0)),
        token_ids=[511, 300],
        valid=True,
        queue_ns=1,
        inference_ns=2,
        passes=7,
        settled=7,
    ),
    ChatDone(
        request=1,
        reason="length",
        prompt_tokens=9,
        answer_tokens=20,
        reused=0,
        slot="",
        queue_ns=1,
        prefill_ns=2,
        decode_ns=3,
        draft="lookup",
        drafted=21,
        accepted=13,
        draft_passes=4,
        plain_passes=2,
    ),
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
def test_foreign_headers_are_rejected(header: bytes):
    with pytest.raises(WorkerError):
        decode(header, b"")


def test_a_length_beyond_the_limit_is_rejected_before_it_is_read():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(PREFIX.pack(8, MAX_PAYLOAD_BYTES + 1))
        with pytest.raises(WorkerError, match="bytes between processes"):
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


@pytest.mark.parametrize(
    ("place", "value"),
    [(1, None), (1, []), (1, {}), (1, SCHEMA_VALUES[:-1]), (1, [*SCHEMA_VALUES, 1]), (1, ["x", *SCHEMA_VALUES[1:]])],
)
def test_a_broken_schema_is_rejected(place: int, value: object):
    parts = msgpack.unpackb(encode(SessionOpened(1, SCHEMA))[0])
    parts[1 + place] = value
    with pytest.raises(WorkerError, match=r"SessionOpened.schema has the wrong type"):
        decode(msgpack.packb(parts), b"")


def test_a_schema_of_unequal_columns_is_rejected():
    parts = msgpack.unpackb(encode(SessionOpened(1, SCHEMA))[0])
    parts[2][1] = ["m", "m"]
    with pytest.raises(WorkerError, match=r"SessionOpened.schema is inconsistent"):
        decode(msgpack.packb(parts), b"")


def test_a_worker_in_reserve_may_begin_without_pass_times():
    assert decode(*encode(Begin(None))) == Begin(None)
    with pytest.raises(WorkerError, match="pass_times"):
        decode(*encode(Begin([1, 2, 3, 4, 5])))


@pytest.mark.parametrize("sizes", [[4], [4, 5, 6], [4, 5, 4, 5], [], [4, 4]])
@pytest.mark.parametrize("payload", [bytes(60), (bytes(60),), (bytes(30), bytes(30))])
def test_a_frame_has_the_pixels_that_its_sizes_say(sizes: list[int], payload: bytes | tuple[bytes, ...]):
    frame = SubmitFrame(session=1, epoch=1, seq=1, sizes=sizes, instruction="go", payload=payload)
    with pytest.raises(WorkerError):
        frame.images()


def test_python_3_10_can_read_the_types_of_the_sdk_that_messages_carry():
    """Its get_type_hints rejects dataclasses.KW_ONLY, and with it every message that carries such a dataclass."""
    kinds = [kind for kind in vars(types).values() if is_dataclass(kind)]
    assert len(kinds) > 3 and [kind.__name__ for kind in kinds if "_" in kind.__annotations__] == []
