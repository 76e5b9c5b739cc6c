"""Damaged recordings: read up to the damage, which is told; hostile lengths ask for no memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib

import pytest
import zstandard

from edgeflow_client.errors import InvalidArgument
from edgeflow_client.recording.framing import MAGIC, MOST_CHUNK, Damage, read_records
from edgeflow_client.recording.reader import Recording
from edgeflow_client.recording.records import TOPIC
from tests.client.recording.written import OwnRecorder, frame, opening


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    """A file of several chunks."""
    directory = tmp_path_factory.mktemp("whole")
    recorder = OwnRecorder(directory)
    recorder.put(opening())
    for seq in range(1, 25):
        recorder.put(frame(seq))
        if seq % 4 == 0:
            recorder.write()
    recorder.close()
    (file,) = directory.iterdir()
    return file.read_bytes()


@pytest.fixture
def read(tmp_path):
    """read(data) is what a file of these bytes holds, and its damage; None without facts."""
    path = tmp_path / "file.mcap"

    def records(data: bytes):
        path.write_bytes(data)
        try:
            recording = Recording([path])
        except InvalidArgument:
            return None
        return list(recording.records(TOPIC)), recording.damage

    return records


def test_a_file_that_is_cut_off_is_read_up_to_there(whole, read):
    (records, damage) = read(whole)
    assert len(records) == 25 and damage == []
    lengths = []
    for cut in sorted(random.sample(range(len(whole)), 60)):
        if (found := read(whole[:cut])) is None:
            assert cut < 400  # not even facts
            continue
        assert found[0] == records[: len(found[0])]
        ((damage,),) = (found[1],)
        assert cut - 9 <= damage.offset <= cut or "cut off" in damage.text
        lengths.append(len(found[0]))
    assert lengths == sorted(lengths) and len(set(lengths)) > 4


def test_a_flipped_bit_never_changes_a_record_in_silence(whole, read):
    records = read(whole)[0]
    told = 0
    for _ in range(150):
        at, bit = random.randrange(len(whole)), 1 << random.randrange(8)
        found = read(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        if found is None:
            assert at < 400
            continue
        assert found[0] == records[: len(found[0])], (at, bit)
        assert found[1] or len(found[0]) == len(records), (at, bit)
        told += bool(found[1])
    assert told > 20


def _record(opcode: int, body: bytes, length: int | None = None) -> bytes:
    return struct.pack("<BQ", opcode, len(body) if length is None else length) + body


def _text(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<I", len(text) if length is None else length) + text


def _chunk(data: bytes, size: int, compression: bytes = b"", stored: int | None = None) -> bytes:
    header = struct.pack("<QQQI", 0, 0, size, zlib.crc32(data)) + _text(compression)
    return _record(6, header + struct.pack("<Q", len(data) if stored is None else stored) + data)


HUGE = 1 << 62
_BOMB = zstandard.ZstdCompressor(level=1).compress(bytes(MOST_CHUNK + 1))
HOSTILE = {
    "record": _record(6, b"", HUGE),
    "chunk": _chunk(b"x" * 100, HUGE),
    "chunk of another size": _chunk(b"x" * 100, 50),
    "chunk, compressed": _chunk(zstandard.compress(b"x" * 100), HUGE, b"zstd"),
    "chunk, compressed, of a small size": _chunk(_BOMB, 100, b"zstd"),
    "chunk, compressed, of its size": _chunk(_BOMB, MOST_CHUNK + 1, b"zstd"),
    "chunk, not stored": _chunk(b"", 100, b"", HUGE),
    "chunk, compressed otherwise": _chunk(b"x", 1, b"lz4"),
    "chunk, not zstd": _chunk(b"xxxx", 4, b"zstd"),
    "message in a chunk": _chunk(_record(5, b"", HUGE), 9),
    "channel": _record(4, struct.pack("<HH", 1, 1) + _text(b"/topic", 0xFFFFFFFF)),
    "channel's metadata": _record(4, struct.pack("<HH", 1, 1) + _text(b"") * 2 + struct.pack("<I", 0xFFFFFFFF)),
    "large channel": _record(4, bytes(2 << 20)),
    "metadata": _record(0xC, _text(b"edgeflow", 0xFFFFFFFF)),
    "index": _record(7, struct.pack("<HI", 1, 0xFFFFFFFF)),
    "message": _record(5, b"short"),
    "unknown": _record(0x55, b""),
    "text": _record(4, struct.pack("<HH", 1, 1) + _text(b"\xff\xfe") * 2 + struct.pack("<I", 0)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_lengths_are_damage_and_ask_for_no_memory(tmp_path, name):
    path, damage = tmp_path / "file.mcap", []
    start = MAGIC + _record(1, _text(b"") * 2)
    path.write_bytes(start + HOSTILE[name])
    tracemalloc.start()
    try:
        records = list(read_records(path, damage))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert records == [] or name.startswith("channel")
    (found,) = damage
    assert isinstance(found, Damage) and found.offset == len(start) and found.text


def _channel(number: int, topic: str) -> bytes:
    return _record(4, struct.pack("<HH", number, 0) + _text(topic.encode()) + _text(b"json") + struct.pack("<I", 0))


def _message(data: bytes) -> bytes:
    return _record(5, struct.pack("<HIQQ", 1, 0, 1, 1) + data)


_FACTS = _record(0xC, _text(b"edgeflow") + _text(_text(b"format") + _text(b"1")))
_OPENED = b'{"kind":"opened","record_number":0,"time_ns":1,"session":1,"source":"","cameras":[%s]}'
_CLOSED = b'{"kind":"closed","record_number":%d,"time_ns":1,"session":1%s}'
HOSTILE_JSON = {
    "no text": _CLOSED % (1, b',"reason":"\xff"'),
    "no text in an unknown field": _CLOSED % (1, b',"unknown":"\xff"'),
    "nested": _CLOSED % (1, b',"unknown":' + b"[" * 100_000 + b"]" * 100_000),
    "number": _CLOSED % (1, b',"unknown":' + b"9" * 100_000),
    "cameras": _OPENED % b",".join([b'{"name":"a"}'] * 20_000),
    "large": _CLOSED % (1, b" " * (17 << 20)),
}


@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_hostile_records_are_damage_or_left_out(tmp_path, name):
    path = tmp_path / "file.mcap"
    records = _channel(1, TOPIC) + _message(_CLOSED % (0, b"")) + _message(HOSTILE_JSON[name])
    path.write_bytes(MAGIC + _FACTS + _chunk(records, len(records)))
    recording = Recording([path])
    assert len(list(recording.sessions())) <= 2
    (found,) = recording.damage
    assert "cannot be read" in found.text or (name == "number" and "has no end" in found.text)


def test_long_topics_are_not_kept(tmp_path):
    records = b"".join(_channel(number, f"/{number}/images/{'x' * 900_000}") for number in range(100))
    chunk = _chunk(zstandard.compress(records), len(records), b"zstd")
    chunk = chunk.replace(struct.pack("<I", zlib.crc32(zstandard.compress(records))), bytes(4), 1)  # no checksum
    path = tmp_path / "file.mcap"
    path.write_bytes(MAGIC + _FACTS + chunk)
    recording = Recording([path])
    tracemalloc.start()
    try:
        assert not list(recording.records(TOPIC)) and "has no end" in recording.damage[0].text
        assert tracemalloc.get_traced_memory()[1] < 3 * len(records) // 2
    finally:
        tracemalloc.stop()


def test_what_is_no_recording_is_rejected(tmp_path):
    (tmp_path / "notes.mcap").write_bytes(b"notes")
    with pytest.raises(InvalidArgument, match=r"notes.mcap is not a recording by edgeflow"):
        Recording.open(tmp_path / "notes.mcap")
    with pytest.raises(InvalidArgument, match="has no recording"):
        Recording.open(tmp_path)
    with pytest.raises(InvalidArgument, match="No such file"):
        Recording.open(tmp_path / "nothing")
