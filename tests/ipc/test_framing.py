"""Messages are assembled from bytes that come in any pieces; memory is taken for lengths that were checked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.ipc.framing import MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES, PREFIX, Framer
from edgeflow_client.errors import WorkerError


def assembled(framer: Framer, data: bytes, pieces: list[int]) -> list[tuple[bytes, bytes]]:
    """The messages in `data`, which comes in pieces of these lengths, the last one repeated."""
    found, rest = [], memoryview(data)
    while rest:
        count = min(pieces.pop(0) if len(pieces) > 1 else pieces[0], len(framer.space), len(rest))
        framer.space[:count], rest = rest[:count], rest[count:]
        if (message := framer.filled(count)) is not None:
            found.append((bytes(message[0]), bytes(message[1])))
    return found


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=30), st.binary(max_size=60)), max_size=5),
    st.lists(st.integers(1, 40), min_size=1),
)
def test_any_pieces_give_the_same_messages(messages: list[tuple[bytes, bytes]], pieces: list[int]):
    data = b"".join(PREFIX.pack(*map(len, each)) + b"".join(each) for each in messages)
    assert assembled(Framer(), data, pieces) == messages


@pytest.mark.parametrize(
    "lengths", [(0, 0), (0, 1), (MAX_HEADER_BYTES + 1, 0), (1, MAX_PAYLOAD_BYTES + 1), (2**32 - 1, 2**32 - 1)]
)
def test_lengths_are_rejected_before_memory_is_taken(lengths: tuple[int, int]):
    with pytest.raises(WorkerError, match=f"{lengths[0]}\\+{lengths[1]} bytes"):
        assembled(Framer(), PREFIX.pack(*lengths), [PREFIX.size])


def test_no_memory_is_taken_for_a_payload_before_it_is_read():
    framer = Framer()
    assert assembled(framer, PREFIX.pack(3, MAX_PAYLOAD_BYTES) + b"abc", [3]) == []
    assert framer.before_payload and len(framer._payload) == 0
    assert len(framer.space) == MAX_PAYLOAD_BYTES and not framer.before_payload


def test_an_owner_may_permit_shorter_headers():
    with pytest.raises(WorkerError, match="9\\+0 bytes"):
        assembled(Framer(8), PREFIX.pack(9, 0), [PREFIX.size])
