"""Whatever comes through the socket between front and worker: a message of ours, or a WorkerError."""

from __future__ import annotations

import dataclasses
import math

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgeflow.contract import Chunk
from edgeflow.ipc.coding import decode, encode
from edgeflow.ipc.messages import FrameResult, Message, Ping, Pong, SubmitFrame, WarmupProgress
from edgeflow_client.errors import WorkerError

LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(LEAVES, inner), max_leaves=6)
KINDS: tuple[type[Message], ...] = Message.__args__
RESULT = FrameResult(
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
)


def decodes_or_is_rejected(header: bytes, payload: bytes) -> None:
    try:
        message = decode(header, payload)
    except WorkerError as error:
        assert len(str(error)) < 100
    else:
        assert isinstance(message, KINDS)
        assert same(decode(*encode(message)), message)


def list_of(value: object) -> list[object]:
    """A dataclass within a message, as it travels."""
    return [getattr(value, each.name) for each in dataclasses.fields(value)]  # type: ignore[arg-type]


def same(one: Message, other: Message) -> bool:
    """Equal, NaN to NaN."""
    return encode(one) == encode(other)


@given(st.binary(max_size=200), st.binary(max_size=20))
@example(b"\x80", b"")
@example(b"\xdd\xff\xff\xff\xff", b"")
@example(b"\x91" * 5000, b"")
@example(b"\xd4\xff\x00", b"")
def test_any_bytes(header: bytes, payload: bytes):
    decodes_or_is_rejected(header, payload)


@given(st.integers(-3, len(KINDS) + 1), st.lists(VALUES, max_size=16))
def test_any_values(code: int, values: list[object]):
    decodes_or_is_rejected(msgpack.packb([code, *values]), b"")


@given(st.integers(0, len(RESULT.__slots__) - 1), VALUES)
def test_a_field_of_another_type(position: int, value: object):
    fields = [getattr(RESULT, name) for name in RESULT.__slots__]
    fields[position] = value
    decodes_or_is_rejected(msgpack.packb([KINDS.index(FrameResult), *fields], default=list_of), b"")


@pytest.mark.parametrize(
    "message",
    [
        Ping("7"),
        Ping(True),
        Ping(7.0),
        FrameResult(
            session=1,
            epoch=2,
            seq=3,
            chunk="0.5",
            token_ids=[1],
            valid=True,
            queue_ns=1,
            inference_ns=2,
            passes=7,
            settled=7,
        ),
        FrameResult(
            session=1,
            epoch=2,
            seq=3,
            chunk=Chunk((0.5, "1")),
            token_ids=[1],
            valid=True,
            queue_ns=1,
            inference_ns=2,
            passes=7,
            settled=7,
        ),
        FrameResult(
            session=1,
            epoch=2,
            seq=3,
            chunk=Chunk((0.5, True)),
            token_ids=[1],
            valid=True,
            queue_ns=1,
            inference_ns=2,
            passes=7,
            settled=7,
        ),
        FrameResult(
            session=1,
            epoch=2,
            seq=3,
            chunk=Chunk((0.5,)),
            token_ids=[1.5],
            valid=True,
            queue_ns=1,
            inference_ns=2,
            passes=7,
            settled=7,
        ),
        FrameResult(
            session=1,
            epoch=2,
            seq=3,
            chunk=Chunk((0.5,)),
            token_ids=[1],
            valid=1,
            queue_ns=1,
            inference_ns=2,
            passes=7,
            settled=7,
        ),
        WarmupProgress(b"step", 1, 1),
        SubmitFrame(session=1, epoch=2, seq=3, sizes=None, instruction="x", payload=b""),
    ],
    ids=lambda message: repr(message)[:50],
)
def test_wrong_types_are_named(message: Message):
    with pytest.raises(WorkerError, match=r"has the wrong type"):
        decode(*encode(message))


@pytest.mark.parametrize("code", [-1, len(KINDS), "0", None, [0], 0.0, False])
def test_kinds_are_known_numbers(code: object):
    with pytest.raises(WorkerError, match="unknown message"):
        decode(msgpack.packb([code, 1]), b"")


def test_maps_are_not_messages():
    with pytest.raises(WorkerError):
        decode(msgpack.packb({KINDS.index(Ping): 1, 7: 2}), b"")


@pytest.mark.parametrize("values", [[1, -1], [math.nan, math.inf], []])
def test_numbers_that_a_gate_judges_later_pass(values: list[float]):
    message = FrameResult(
        session=1,
        epoch=2,
        seq=3,
        chunk=Chunk(tuple(values)),
        token_ids=[],
        valid=False,
        queue_ns=1,
        inference_ns=2,
        passes=7,
        settled=7,
    )
    assert same(decode(*encode(message)), message)
    pong = Pong(
        nonce=1, passes=2, rows=3, full_passes=4, pass_ns=[1], pass_prefills=[2], pass_decodes=[3], pass_whole=[False]
    )
    assert decode(*encode(pong)) == pong
