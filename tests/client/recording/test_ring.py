"""The ring of records: what is written comes out, in order, and what finds no room is counted."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow_client.recording.ring import HEADER_BYTES, LEAST_BYTES, RecordRing


def _read(ring: RecordRing) -> list[tuple[int, bytes, bytes]]:
    """Everything written so far, released."""
    found = []
    for _ in range(2):  # a look takes what the one before saw
        for record in ring.look():
            found.append((record.number, record.head, bytes(record.payload)))
            ring.release(record.end)
    return found


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=20_000), st.booleans()), max_size=60))
@settings(max_examples=60, deadline=None)
def test_a_record_comes_out_as_it_was_written_or_is_counted_as_lost(steps: list[tuple[bytes, bytes, bool]]) -> None:
    ring, written, seen = RecordRing.make(LEAST_BYTES), [], []
    for number, (head, payload, reads) in enumerate(steps):
        if ring.put(head, (payload[:7], payload[7:])):
            written.append((number, head, payload))
        if reads:
            seen += _read(ring)
    seen += _read(ring)
    assert seen == written
    assert ring.lost == len(steps) - len(written)


def test_a_full_ring_loses_records_and_numbers_the_next_ones_after_them() -> None:
    ring = RecordRing.make(LEAST_BYTES)
    payload = bytes(LEAST_BYTES // 4)
    kept = [ring.put(b"head", (payload,)) for _ in range(5)]
    assert kept == [True, True, True, False, False]
    assert [number for number, *_ in _read(ring)] == [0, 1, 2]
    assert ring.put(b"later")
    assert _read(ring) == [(5, b"later", b"")]


def test_the_last_room_is_for_records_without_payload() -> None:
    ring = RecordRing.make(LEAST_BYTES)
    while ring.put(b"frame", (bytes(1000),)):
        pass
    assert sum(ring.put(b"opened" * 20) for _ in range(25)) == 25
    assert ring.lost == 1


def test_a_successor_reads_what_was_not_released() -> None:
    ring = RecordRing.make(LEAST_BYTES)
    ring.put(b"one")
    ring.put(b"two")
    list(ring.look())
    first, _ = list(ring.look())
    ring.release(first.end)
    assert _read(RecordRing(ring.descriptor)) == [(1, b"two", b"")]


def _write(descriptor: int, count: int) -> None:
    ring = RecordRing(descriptor)
    for number in range(count):
        while not ring.put(number.to_bytes(4, "big"), (bytes([number % 251]) * (number % 900),)):
            os.sched_yield()


def test_another_process_reads_while_one_writes() -> None:
    ring, count = RecordRing.make(LEAST_BYTES), 3000
    os.set_inheritable(ring.descriptor, True)
    writer = multiprocessing.get_context("fork").Process(target=_write, args=(ring.descriptor, count))
    writer.start()
    heads: list[int] = []
    while len(heads) < count:
        for _, head, payload in _read(ring):
            number = int.from_bytes(head, "big")
            assert payload == bytes([number % 251]) * (number % 900)
            heads.append(number)
    writer.join()
    assert heads == list(range(count))


def test_what_is_damaged_is_skipped_and_a_record_that_could_not_be_made_is_lost() -> None:
    ring = RecordRing.make(LEAST_BYTES)
    for _ in range(3):
        ring.put(b"head", (bytes(100),))
    os.pwrite(ring.descriptor, b"\xff\xff\xff\x7f", HEADER_BYTES + 120)  # the length of the second one
    assert [number for number, *_ in _read(ring)] == [0]
    ring.lose()
    ring.put(b"later")
    assert _read(ring) == [(4, b"later", b"")] and ring.lost == 1
    assert not ring.waiting_bytes


def test_memory_that_is_no_ring_is_rejected(tmp_path: Path) -> None:
    with (tmp_path / "short").open("wb+") as file:
        file.truncate(HEADER_BYTES + 8)
        with pytest.raises(ValueError, match="no ring"):
            RecordRing(file.fileno())
