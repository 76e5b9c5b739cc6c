"""The sessions of a recording: their contracts and epochs, and frames with their images and answers."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol, TypeAlias

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from edgeflow.contract import CHANNELS
from edgeflow_client.errors import FailedPrecondition, InvalidArgument
from edgeflow_client.pictures import on_the_wire
from edgeflow_client.recording.records import (
    AnySessionRecord,
    RecordedAnswer,
    RecordedClosing,
    RecordedExecution,
    RecordedHold,
    RecordedNotice,
    RecordedObservation,
    RecordedOpening,
    RecordedOutcome,
)
from edgeflow_client.types import CameraSpec, ImageFormat

Images: TypeAlias = tuple[bytes, ...]
MOST_PENDING = 64
"""Frames of a session that may wait for their answers, which come in any order."""
MOST_OPEN = 1024
"""Frames of a session whose outcome is counted when it comes."""


class SessionSource(Protocol):
    """A recording."""

    @property
    def facts(self) -> dict[str, str]:
        """Facts that its writer states."""
        ...

    def sessions(self) -> Iterator[tuple[AnySessionRecord, Images]]:
        """Its records in order, each frame with its images; none where they were not recorded."""
        ...


@dataclass(slots=True, kw_only=True)
class StoredEpoch:
    """An episode of a session, from its first frame."""

    number: int
    """As the service counts."""
    instruction: str
    """That of its first frame."""
    first_ns: int
    """Time of its first frame, in nanoseconds since 1970."""
    last_ns: int
    """Time of its last frame."""
    frames: int = 0
    answers: int = 0


@dataclass(slots=True, kw_only=True)
class StoredSession:
    """A session of a recording: one stream, from its opening to its closing."""

    label: str
    """Its number; with the number of its stream, as in `0.1`, where a robot opened more than one."""
    number: int
    opening: RecordedOpening | None = None
    """Its contract; None if that record was lost."""
    closing: RecordedClosing | None = None
    """None = it was open at the end."""
    first_ns: int = 0
    """Time of its first frame, in nanoseconds since 1970; 0 = it has none."""
    last_ns: int = 0
    frames: int = 0
    frames_with_images: int = 0
    image_bytes: int = 0
    answers: int = 0
    unknown_answers: int = 0
    """Answers to frames that are not in the recording, or that were answered before."""
    executed: int = 0
    """Rows that its robot reported as executed."""
    epochs: list[StoredEpoch] = field(default_factory=list)
    """Those with frames, in order."""
    holds: Counter[str] = field(default_factory=Counter)
    """HOLD and STOP by reason."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Frames by disposition."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Frames that were not answered, by reason."""
    notices: Counter[str] = field(default_factory=Counter)
    server_ns: array[int] = field(default_factory=lambda: array("Q"))
    """The time from receiving a frame to sending its answer, of each answer."""
    age_ns: array[int] = field(default_factory=lambda: array("Q"))
    """The age of the frame, of each answer."""
    _open: dict[int, None] = field(default_factory=dict)  # the last frames without an outcome

    @property
    def cameras(self) -> tuple[CameraSpec, ...]:
        """The cameras with the format and size of the images that were sent."""
        return on_the_wire(self.contract.cameras)

    @property
    def contract(self) -> RecordedOpening:
        """Its opening; FailedPrecondition if that record was lost."""
        if self.opening is None:
            text = f"session {self.label}: the record of its opening was lost, so its cameras and state are unknown"
            raise FailedPrecondition(text, field="path")
        return self.opening

    def add(self, record: AnySessionRecord, images: Images) -> None:
        """Count a record of this session."""
        match record:
            case RecordedOpening():
                self.opening = record
            case RecordedObservation():
                self._add_frame(record, images)
            case RecordedAnswer():
                self._add_answer(record)
            case RecordedHold():
                self.holds[f"{record.command.value.upper()} {record.reason}".rstrip()] += 1
            case RecordedOutcome():
                self._add_outcome(record)
            case RecordedNotice():
                self.notices[record.notice] += 1
            case RecordedExecution():
                self.executed += 1
            case RecordedClosing():
                self.closing = record

    def _add_frame(self, record: RecordedObservation, images: Images) -> None:
        self.first_ns, self.last_ns = self.first_ns or record.time_ns, record.time_ns
        self.frames += 1
        self.frames_with_images += bool(images)
        self.image_bytes += sum(map(len, images))
        if not self.epochs or self.epochs[-1].number != record.epoch:
            begun = record.time_ns
            self.epochs.append(
                StoredEpoch(number=record.epoch, instruction=record.instruction, first_ns=begun, last_ns=begun)
            )
        self.epochs[-1].frames += 1
        self.epochs[-1].last_ns = record.time_ns
        self._open[record.seq] = None
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def _add_answer(self, record: RecordedAnswer) -> None:
        if record.seq not in self._open:
            self.unknown_answers += 1
            return
        self.answers += 1
        del self._open[record.seq]
        self.server_ns.append(min(record.server_ns, _MOST_NS))
        self.age_ns.append(min(record.age_ns, _MOST_NS))
        for epoch in self.epochs[-2:]:  # an answer may come after the first frame of the next one
            epoch.answers += epoch.number == record.epoch

    def _add_outcome(self, record: RecordedOutcome) -> None:
        last = max(record.seq, record.last_seq)
        found = [seq for seq in self._open if record.seq <= seq <= last] if record.last_seq else [record.seq]
        for seq in found:
            self._open.pop(seq, None)
        self.outcomes[record.disposition.value] += len(found)
        if record.reason or record.code:
            self.reasons[record.reason or record.code] += len(found)


_MOST_NS = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFrame:
    """A frame with what became of it."""

    observation: RecordedObservation
    images: Images
    """Those of the session's cameras, in their order; empty where they were not recorded."""
    answer: RecordedAnswer | None = None
    outcome: RecordedOutcome | None = None
    """Other than an answer."""


def labelled(source: SessionSource) -> Iterator[tuple[str, AnySessionRecord, Images]]:
    """All records in order, each with the label of its session."""
    openings: Counter[int] = Counter()
    for record, images in source.sessions():
        number = record.session
        openings[number] += isinstance(record, RecordedOpening)
        yield (f"{number}.{openings[number] - 1}" if openings[number] > 1 else f"{number}"), record, images


def read_sessions(source: SessionSource) -> dict[str, StoredSession]:
    """The sessions by label, in the order of their first records. It reads the whole recording and keeps no frame."""
    sessions: dict[str, StoredSession] = {}
    for label, record, images in labelled(source):
        session = sessions.get(label)
        if session is None:
            session = sessions[label] = StoredSession(label=label, number=record.session)
        session.add(record, images)
    return sessions


def read_frames(source: SessionSource, label: str) -> Iterator[StoredFrame]:
    """The frames of a session in order, with their images and answers. Few of them are in memory at a time."""
    pending: dict[int, StoredFrame] = {}
    for found, record, images in labelled(source):
        if found != label:
            continue
        match record:
            case RecordedObservation():
                if len(pending) >= MOST_PENDING:
                    yield pending.pop(next(iter(pending)))
                if record.seq in pending:  # numbers begin anew, after a lost record of an opening
                    yield from pending.values()
                    pending.clear()
                pending[record.seq] = StoredFrame(observation=record, images=images)
            case RecordedAnswer() if record.seq in pending:
                frame = pending[record.seq]
                pending[record.seq] = StoredFrame(observation=frame.observation, images=frame.images, answer=record)
            case RecordedOutcome():
                _note(pending, record)
        while pending and _complete(first := next(iter(pending.values()))):
            yield pending.pop(first.observation.seq)
    yield from pending.values()


def epochs_of(frames: Iterator[StoredFrame]) -> Iterator[tuple[int, Iterator[StoredFrame]]]:
    """The frames of a session by epoch, each of which is read to its end before the next one."""
    yield from groupby(frames, key=lambda frame: frame.observation.epoch)


def chosen_sessions(sessions: dict[str, StoredSession], chosen: Sequence[str]) -> list[StoredSession]:
    """The sessions with these labels or numbers, all if there are none; InvalidArgument for one that does not exist."""
    if not sessions:
        text = "has no sessions: nothing was sent while it was recorded, or it is damaged (`edgeflow recording info`)"
        raise InvalidArgument(text, field="path")
    for each in chosen:
        if not any(each in (session.label, str(session.number)) for session in sessions.values()):
            raise InvalidArgument(f"{each} is not one of {', '.join(sessions)}", field="session")
    wanted = [each for each in sessions.values() if not chosen or {each.label, str(each.number)} & set(chosen)]
    if not any(each.frames for each in wanted):
        raise InvalidArgument("has no frames of these sessions", field="path")
    return [each for each in wanted if each.frames]


def sessions_with_images(source: SessionSource, chosen: Sequence[str]) -> list[StoredSession]:
    """The chosen sessions of a recording, all if there are none; errors as in `chosen_sessions` and `check_images`."""
    sessions = chosen_sessions(read_sessions(source), chosen)
    check_images(source, sessions)
    return sessions


def check_images(source: SessionSource, sessions: list[StoredSession]) -> None:
    """Raise FailedPrecondition unless the images of these sessions were recorded."""
    kept = source.facts.get("cameras", "all")
    for session in sessions:
        if not session.contract.cameras:
            continue
        if kept != "all" or not session.frames_with_images:
            what = {"none": "without images", "thumbnails": "with thumbnails only"}.get(kept, "without its images")
            text = f"session {session.label} was recorded {what}; its frames need them: record with cameras `all`"
            raise FailedPrecondition(text, field="path")


def pixels_of(image: bytes, camera: CameraSpec, seq: int) -> NDArray[np.uint8]:
    """An image [height, width, 3] as the service decodes it; InvalidArgument if it is not one of this camera."""
    shape = (camera.height, camera.width, CHANNELS)
    found = f"{len(image)} bytes"
    if camera.format is ImageFormat.RGB8 and len(image) == camera.height * camera.width * CHANNELS:
        return np.frombuffer(image, np.uint8).reshape(shape)
    if camera.format is ImageFormat.JPEG:
        try:
            height, width, *_ = simplejpeg.decode_jpeg_header(image)
            if (height, width) == shape[:2]:  # nothing larger is allocated
                pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(image, colorspace="RGB")
                return pixels
            found = f"{width}x{height}"
        except ValueError:
            found = "not a JPEG image"
    text = f"frame {seq}: the image of {camera.name!r} is {found}; it was opened with {camera.width}x{camera.height}"
    raise InvalidArgument(f"{text} {camera.format.value}", field="path")


def _note(pending: dict[int, StoredFrame], outcome: RecordedOutcome) -> None:
    """Add an outcome to the frames that it is about."""
    last = max(outcome.seq, outcome.last_seq)
    for seq in [seq for seq in pending if outcome.seq <= seq <= last]:
        frame = pending[seq]
        if frame.answer is None:
            pending[seq] = StoredFrame(observation=frame.observation, images=frame.images, outcome=outcome)


def _complete(frame: StoredFrame) -> bool:
    return frame.answer is not None or frame.outcome is not None
