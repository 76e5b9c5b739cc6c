"""Reads recordings: each record once, in order, up to the damage of each file."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from mcap.records import Channel, Message, Metadata

from edgeflow_client.errors import InvalidArgument
from edgeflow_client.recording.framing import Damage, read_records
from edgeflow_client.recording.records import FACTS, FORMAT, NUMBER, TOPIC, AnySessionRecord, image_topics
from edgeflow_client.recording.runs import runs

MOST_WAITING = 256 << 20  # bytes of images whose frame has not come
MOST_RECORD = 16 << 20  # bytes of JSON
MOST_TOPIC = 256  # characters of a topic
MOST_CAMERAS = 64  # of a session
MOST_SESSIONS = 4096  # open ones of a file


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record of a recording."""

    number: int
    """Records of its topic before it in the run; a gap is as many lost ones."""
    time_ns: int
    """Nanoseconds since 1970."""
    data: bytes
    """JSON: the fields of the record, and its number as NUMBER."""
    images: tuple[bytes, ...] = ()
    """All images of a frame in the order of its cameras; none if they were not recorded."""


class Recording:
    """The files of one run, in order. Every iteration reads them anew."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """InvalidArgument if no file holds facts of edgeflow, or they are of several runs."""
        self.paths = tuple(paths)
        self.facts: dict[str, str] = {}
        """The facts of the first file."""
        self._damage: dict[Path, list[Damage]] = {}
        for path in self.paths:
            facts = _facts(path)
            self.facts = self.facts or facts
            if facts.get("run", self.facts.get("run")) != self.facts.get("run"):
                raise InvalidArgument(f"{path.name} is of another run than the files before it", field="recording")
        if not self.facts:
            named = ", ".join(path.name for path in self.paths[:3]) or "nothing"
            raise InvalidArgument(
                f"{named} is not a recording by edgeflow, or its beginning is damaged", field="recording"
            )
        if self.facts.get("format") != FORMAT:
            raise InvalidArgument(
                f"it has format {self.facts.get('format')!r}, and this version reads {FORMAT!r}", field="recording"
            )

    @classmethod
    def open(cls, path: Path, run: str = "") -> Recording:
        """A file; or of a folder the files of a run, or of the run that was written last.

        InvalidArgument if there is no such recording.
        """
        if path.is_file():
            return cls([path])
        try:
            found = [each for each in runs(path) if run in ("", each.name)]
        except OSError as error:
            raise InvalidArgument(f"{str(path)!r}: {error.strerror}", field="recording") from None
        if not found:
            what = (
                f" of run {run}: `edgeflow recording info` lists the runs" if run else ": name a file or another folder"
            )
            raise InvalidArgument(f"{str(path)!r} has no recording{what}", field="recording")
        return cls(found[-1].files)

    @property
    def damage(self) -> list[Damage]:
        """The places up to which files could be read, as far as they have been."""
        return [damage for path in self.paths for damage in self._damage.get(path, ())]

    def records(self, topic: str) -> Iterator[StoredRecord]:
        """The records of a topic by number, each once.

        A file begins with copies of earlier records. One whose original is missing comes where its first copy is.
        """
        seen = _Numbers()
        for path in self.paths:
            damage = self._damage[path] = []
            for record in _file_records(path, topic, damage):
                if seen.add(record.number):
                    yield record

    def sessions(self) -> Iterator[tuple[AnySessionRecord, tuple[bytes, ...]]]:
        """The records of sessions, with the images of each frame. Kinds of later versions are left out."""
        for stored in self.records(TOPIC):
            record = _session_record(stored.data)
            if record is not None:
                yield record, stored.images


class _Numbered(msgspec.Struct):
    """The fields that every record has."""

    time_ns: int
    number: int = msgspec.field(name=NUMBER)


class _Head(_Numbered):
    """The fields that are read of every record of sessions."""

    kind: str = ""
    session: int = -1
    image_bytes: tuple[int, ...] = ()


class _NamedCamera(msgspec.Struct):
    name: str


class _CameraNames(msgspec.Struct):
    cameras: Annotated[tuple[_NamedCamera, ...], msgspec.Meta(max_length=MOST_CAMERAS)]


_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)  # of a record's JSON
_NUMBERED = msgspec.json.Decoder(_Numbered)
_HEADS = msgspec.json.Decoder(_Head)
_CAMERAS = msgspec.json.Decoder(_CameraNames)
_RECORDS: msgspec.json.Decoder[AnySessionRecord] = msgspec.json.Decoder(AnySessionRecord)


def _facts(path: Path) -> dict[str, str]:
    """The facts of a file; empty if it has none."""
    for _, record in read_records(path, []):
        if isinstance(record, Metadata) and record.name == FACTS:
            return dict(record.metadata)
        if isinstance(record, Message):
            break
    return {}


def _file_records(path: Path, topic: str, damage: list[Damage]) -> Iterator[StoredRecord]:
    """The records of a topic in a file, with the images of frames."""
    channels: dict[int, str] = {}
    images = _Images()
    for offset, record in read_records(path, damage):
        if isinstance(record, Channel):
            channels[record.id] = record.topic if len(record.topic) <= MOST_TOPIC else ""
        elif isinstance(record, Message):
            name = channels.get(record.channel_id, "")
            if name == topic:
                try:
                    yield _stored(record.data, images if topic == TOPIC else None)
                except _UNREADABLE:
                    damage.append(Damage(path, offset, f"a record of {topic} at {record.log_time} ns cannot be read"))
                    return
            elif topic == TOPIC and "/images/" in name:
                images.add(name, record)


def _stored(data: bytes, images: _Images | None) -> StoredRecord:
    if len(data) > MOST_RECORD:
        raise ValueError("a record is too large")
    data.decode()  # fields that are skipped here may be no text, too
    if images is None:
        record = _NUMBERED.decode(data)
        return StoredRecord(number=record.number, time_ns=record.time_ns, data=data)
    head = _HEADS.decode(data)
    found: tuple[bytes, ...] = ()
    if head.kind == "opened":
        images.open(head.session, [camera.name for camera in _CAMERAS.decode(data).cameras])
    elif head.kind == "frame":
        found = images.take(head)
    elif head.kind == "closed":
        images.close(head.session)
    return StoredRecord(number=head.number, time_ns=head.time_ns, data=data, images=found)


class _Images:
    """The images of a file that wait for their frame, which comes after them."""

    def __init__(self) -> None:
        self._topics: dict[int, tuple[str, ...]] = {}
        self._waiting: dict[str, Message] = {}
        self._bytes = 0

    def open(self, session: int, cameras: Sequence[str]) -> None:
        self._topics.pop(session, None)
        self._topics[session] = image_topics(session, cameras)
        if len(self._topics) > MOST_SESSIONS:  # the closing of the oldest one is lost
            del self._topics[next(iter(self._topics))]

    def close(self, session: int) -> None:
        self._topics.pop(session, None)

    def add(self, topic: str, message: Message) -> None:
        if self._bytes > MOST_WAITING:
            self._waiting.clear()
            self._bytes = 0
        self._bytes += len(message.data)
        self._waiting[topic] = message

    def take(self, frame: _Head) -> tuple[bytes, ...]:
        """The images of a frame; none if one is missing, or has another size than its frame says."""
        messages = [self._waiting.pop(topic, None) for topic in self._topics.get(frame.session, ())]
        self._bytes -= sum(len(message.data) for message in messages if message is not None)
        images = tuple(
            _image(message.data) for message in messages if message is not None and message.log_time == frame.time_ns
        )
        return images if tuple(map(len, images)) == frame.image_bytes else ()


class _Numbers:
    """A set of numbers that come mostly in order, as ranges."""

    def __init__(self) -> None:
        self._first: list[int] = []
        self._last: list[int] = []

    def add(self, number: int) -> bool:
        """False if it was in the set."""
        if self._last and number == self._last[-1] + 1:
            self._last[-1] = number
            return True
        at = bisect.bisect_right(self._first, number)
        if at and number <= self._last[at - 1]:
            return False
        self._first.insert(at, number)
        self._last.insert(at, number)
        return True


def _session_record(data: bytes) -> AnySessionRecord | None:
    """A record; None for a kind that this version does not know. JSON has null for numbers that are not finite."""
    try:
        return _RECORDS.decode(data)
    except msgspec.ValidationError:
        pass
    try:
        fields = msgspec.json.decode(data)
    except _UNREADABLE:
        return None
    schema = fields.get("schema") if isinstance(fields, dict) else None
    named = (("state", math.nan), ("values", math.nan), ("low", -math.inf), ("high", math.inf))
    for part, (name, unknown) in product((fields, schema), named):
        if isinstance(part, dict) and isinstance(part.get(name), list):
            part[name] = [unknown if value is None else value for value in part[name]]
    try:
        record: AnySessionRecord = msgspec.convert(fields, AnySessionRecord)
    except msgspec.ValidationError:
        return None
    return record


def _image(message: bytes) -> bytes:
    """The image in a foxglove.CompressedImage or foxglove.RawImage; empty if there is none."""
    stored = _StoredImage()
    try:
        stored.ParseFromString(message)
    except DecodeError:
        return b""
    data: bytes = stored.raw or stored.compressed
    return data


def _image_class() -> Any:
    """A message with nothing but the fields `data` of both, which have different numbers."""
    file = descriptor_pb2.FileDescriptorProto(name="edgeflow/stored_image.proto", package="edgeflow")
    message = file.message_type.add(name="StoredImage")
    kind = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
    label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    for name, number in (("compressed", 2), ("raw", 6)):
        message.field.add(name=name, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("edgeflow.StoredImage"))


_StoredImage = _image_class()
