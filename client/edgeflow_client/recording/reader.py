"""Reads recordings: every record once, in order, up to the damage of each file."""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import zstandard
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from mcap import records as mcap_records
from mcap.data_stream import ReadDataStream
from mcap.opcode import Opcode

from edgeflow_client.errors import InvalidArgument
from edgeflow_client.files import open_regular
from edgeflow_client.recording.records import TOPIC, AnySessionRecord, image_topics

PATTERN = "edgeflow-*.mcap"
_NAME = re.compile(r"edgeflow-(?P<start>\d{8}T\d{6})-(?P<run>[0-9a-f]{8})-(?P<counter>\d{4,})\.mcap")


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is not read to its end."""

    file: Path
    offset: int
    """Bytes of the file that were read."""
    text: str


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it was recorded."""

    number: int
    time_ns: int
    """Nanoseconds since 1970."""
    data: bytes
    """JSON."""
    images: tuple[bytes, ...] = ()
    """The images of a frame, if they were recorded."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The files of a run in a folder."""

    name: str
    """8 hexadecimal digits."""
    files: tuple[Path, ...]
    """In order."""
    start: datetime
    """Start of the oldest file, UTC."""
    end: datetime
    """Last change of the newest file, UTC."""
    size_bytes: int


def runs(folder: Path) -> list[RecordedRun]:
    """The runs in a folder, the oldest first."""
    files: dict[str, list[tuple[int, Path]]] = {}
    for path in folder.glob(PATTERN):
        if match := _NAME.fullmatch(path.name):
            files.setdefault(match["run"], []).append((int(match["counter"]), path))
    found = []
    for name, numbered in files.items():
        paths = tuple(path for _, path in sorted(numbered))
        match = _NAME.fullmatch(paths[0].name)
        assert match is not None
        start = datetime.strptime(match["start"], "%Y%m%dT%H%M%S").replace(tzinfo=timezone.utc)
        end = datetime.fromtimestamp(paths[-1].stat().st_mtime, timezone.utc)
        found.append(RecordedRun(name, paths, start, end, sum(path.stat().st_size for path in paths)))
    return sorted(found, key=lambda run: run.end)


class _Head(msgspec.Struct):
    number: int
    time_ns: int = 0
    kind: str = ""
    session: int = -1
    image_bytes: tuple[int, ...] = ()
    cameras: tuple[dict[str, Any], ...] = ()


_HEADS = msgspec.json.Decoder(_Head)


class Recording:
    """The files of a run, in order."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self.damage: list[Damage] = []
        self.facts: dict[str, str] = {}
        for path in self.paths[:1]:
            for record in _records(path, []):
                if isinstance(record, mcap_records.Metadata):
                    self.facts = dict(record.metadata)
                    break

    @classmethod
    def open(cls, path: Path, run: str = "") -> Recording:
        """A file, or all files of a folder's newest run."""
        if path.is_file():
            return cls([path])
        found = [each for each in runs(path) if run in ("", each.name)]
        if not found:
            raise InvalidArgument(f"{str(path)!r} has no recording{f' of run {run}' if run else ''}", field="recording")
        return cls(found[-1].files)

    def records(self, topic: str) -> Iterator[StoredRecord]:
        """The records of a topic by number, each once."""
        self.damage = []
        last = -1
        for path in self.paths:
            channels: dict[int, str] = {}
            images: dict[str, tuple[int, bytes]] = {}
            topics: dict[int, tuple[str, ...]] = {}
            for record in _records(path, self.damage):
                if isinstance(record, mcap_records.Channel):
                    channels[record.id] = record.topic
                if not isinstance(record, mcap_records.Message):
                    continue
                name = channels.get(record.channel_id, "")
                if topic == TOPIC and "/images/" in name:
                    images[name] = (record.log_time, _image(record.data))
                if name != topic:
                    continue
                head = _HEADS.decode(record.data)
                if head.kind == "opened" and topic == TOPIC:
                    topics[head.session] = image_topics(head.session, [camera["name"] for camera in head.cameras])
                if head.number <= last:
                    continue
                last = head.number
                found: tuple[bytes, ...] = ()
                if head.kind == "frame":
                    wanted = topics.get(head.session, ())[: len(head.image_bytes)]
                    if all(images.get(name, (0, b""))[0] == head.time_ns for name in wanted):
                        found = tuple(images[name][1] for name in wanted)
                yield StoredRecord(head.number, head.time_ns, record.data, found)

    def sessions(self) -> Iterator[tuple[AnySessionRecord, tuple[bytes, ...]]]:
        """The records of sessions, with the images of each frame."""
        decoder: msgspec.json.Decoder[AnySessionRecord] = msgspec.json.Decoder(AnySessionRecord)
        for stored in self.records(TOPIC):
            yield decoder.decode(stored.data), stored.images


def _image(message: bytes) -> bytes:
    """The image of a Foxglove message: field 2 of a CompressedImage, or 6 of a RawImage."""
    stored = _IMAGE()
    stored.ParseFromString(message)
    data: bytes = stored.raw or stored.compressed
    return data


def _image_message() -> Any:
    fields = [
        descriptor_pb2.FieldDescriptorProto(name=name, number=number, type=12, label=1)
        for name, number in (("compressed", 2), ("raw", 6))
    ]
    file = descriptor_pb2.FileDescriptorProto(name="edgeflow/stored_image.proto", package="edgeflow.recording")
    file.message_type.add(name="StoredImage", field=fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("edgeflow.recording.StoredImage"))


_IMAGE = _image_message()


def _records(path: Path, damage: list[Damage]) -> Iterator[Any]:
    """The records of a file, up to its damage."""
    with open_regular(path) as stream:
        offset = 8
        stream.seek(offset)
        while True:
            header = stream.read(9)
            if len(header) < 9:
                damage.append(Damage(path, offset, "it has no end: its recorder was killed, or is still writing"))
                return
            opcode, length = struct.unpack("<BQ", header)
            body = _body(stream, length)
            if body is None:
                damage.append(Damage(path, offset, "a record is cut off"))
                return
            if opcode == Opcode.FOOTER:
                return
            if opcode == Opcode.METADATA:
                yield mcap_records.Metadata.read(ReadDataStream(io.BytesIO(body)))
            elif opcode == Opcode.CHUNK:
                yield from _chunk(body)
            offset += 9 + length


def _body(stream: BinaryIO, length: int) -> bytes | None:
    body = stream.read(min(length, 1 << 30))
    return body if len(body) == length else None


def _chunk(body: bytes) -> Iterator[Any]:
    chunk = mcap_records.Chunk.read(ReadDataStream(io.BytesIO(body)))
    data = zstandard.decompress(chunk.data, chunk.uncompressed_size) if chunk.compression == "zstd" else chunk.data
    if chunk.uncompressed_crc and zlib.crc32(data) != chunk.uncompressed_crc:
        return
    at = 0
    while at < len(data):
        opcode, length = struct.unpack_from("<BQ", data, at)
        inner = ReadDataStream(io.BytesIO(data[at + 9 : at + 9 + length]))
        if opcode == Opcode.CHANNEL:
            yield mcap_records.Channel.read(inner)
        elif opcode == Opcode.MESSAGE:
            yield mcap_records.Message.read(inner, length)
        at += 9 + length
