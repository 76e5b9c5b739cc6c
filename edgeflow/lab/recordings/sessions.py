"""The sessions of a recording: their contracts and epochs, and frames with their images and answers."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from edgeflow.contract import CHANNELS
from edgeflow_client.errors import FailedPrecondition, InvalidArgument
from edgeflow_client.loadtest.measure import Distribution, distribution
from edgeflow_client.pictures import on_the_wire
from edgeflow_client.recording.reader import Recording
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
Pixels: TypeAlias = NDArray[np.uint8]
MOST_PENDING = 64
"""Frames of a session that may wait for their answers, which come in any order."""
MOST_OPEN = 1024
"""Frames of a session whose outcome is counted when it comes."""
MOST_TIMED = 1000
"""Observations of a session by which its rate is found."""
_MOST_NS = (1 << 63) - 1


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
    _stamps_ns: array[int] = field(default_factory=lambda: array("Q"))  # of the first observations with images

    @property
    def cameras(self) -> tuple[CameraSpec, ...]:
        """The cameras with the format and size of the images that were sent."""
        return on_the_wire(self.contract.cameras)

    @property
    def rate_hz(self) -> float:
        """Observations per second, by the median time between the robot's stamps of the first ones; 0 = unknown."""
        steps = np.diff(np.array(self._stamps_ns, np.int64))
        steps = steps[steps > 0]
        return 1e9 / float(np.median(steps)) if len(steps) else 0.0

    @property
    def contract(self) -> RecordedOpening:
        """Its opening; FailedPrecondition if that record was lost."""
        if self.opening is None:
            text = f"session {self.label}: the record of its opening was lost, so its cameras and state are unknown"
            raise FailedPrecondition(text, field="path")
        return self.opening

    def state_vectors(self, values: Sequence[float]) -> dict[str, NDArray[np.float32]]:
        """The state vectors of an observation by name. values: of all of them, one after the other."""
        specs = self.contract.state
        parts = np.split(np.array(values, np.float32), list(accumulate(each.size for each in specs)))
        return {each.name: part for each, part in zip(specs, parts, strict=False)}

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
        if len(self._stamps_ns) < MOST_TIMED and (images or not self.opening or not self.opening.cameras):
            self._stamps_ns.append(min(record.stamp_ns, _MOST_NS))
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


@dataclass(slots=True, kw_only=True)
class StoredFrame:
    """A frame with its answer."""

    observation: RecordedObservation
    images: Images
    """Those of the session's cameras, in their order; empty where they were not recorded."""
    answer: RecordedAnswer | None = None
    complete: bool = False
    """Its answer, or another outcome, came."""


def labelled(recording: Recording) -> Iterator[tuple[str, AnySessionRecord, Images]]:
    """All records in order, each with the label of its session."""
    openings: Counter[int] = Counter()
    for record, images in recording.sessions():
        number = record.session
        openings[number] += isinstance(record, RecordedOpening)
        yield (f"{number}.{openings[number] - 1}" if openings[number] > 1 else f"{number}"), record, images


def read_sessions(recording: Recording) -> dict[str, StoredSession]:
    """The sessions by label, in the order of their first records. It reads the whole recording and keeps no frame."""
    sessions: dict[str, StoredSession] = {}
    for label, record, images in labelled(recording):
        if label not in sessions:
            sessions[label] = StoredSession(label=label, number=record.session)
        sessions[label].add(record, images)
    return sessions


def read_frames(recording: Recording, label: str) -> Iterator[StoredFrame]:
    """The frames of a session in order, with their images and answers. Few of them are in memory at a time."""
    pending: dict[int, StoredFrame] = {}
    for found, record, images in labelled(recording):
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
                pending[record.seq].answer = record
                pending[record.seq].complete = True
            case RecordedOutcome():
                for seq, frame in pending.items():
                    frame.complete |= record.seq <= seq <= max(record.seq, record.last_seq)
        while pending and (first := next(iter(pending.values()))).complete:
            yield pending.pop(first.observation.seq)
    yield from pending.values()


def choose_sessions(recording: Recording, chosen: Sequence[str]) -> list[StoredSession]:
    """The sessions with frames and these labels or numbers, all if there are none.

    InvalidArgument for one that does not exist, FailedPrecondition if images were not recorded.
    """
    sessions = read_sessions(recording)
    if not sessions:
        text = "has no sessions: nothing was sent while it was recorded, or it is damaged (`edgeflow recording info`)"
        raise InvalidArgument(text, field="path")
    for each in chosen:
        if not any(each in (session.label, str(session.number)) for session in sessions.values()):
            raise InvalidArgument(f"{each} is not one of {', '.join(sessions)}", field="session")
    wanted = [each for each in sessions.values() if not chosen or {each.label, str(each.number)} & set(chosen)]
    wanted = [each for each in wanted if each.frames]
    if not wanted:
        text = "has no frames of these sessions: `edgeflow recording info` lists them, and --run names another run"
        raise InvalidArgument(text, field="path")
    kept = recording.facts.get("cameras", "all")
    for session in wanted:
        if session.contract.cameras and (kept != "all" or not session.frames_with_images):
            what = {"none": "without images", "thumbnails": "with thumbnails only"}.get(kept, "without its images")
            text = (
                f"session {session.label} was recorded {what}; its frames need them: record with --record-cameras all"
            )
            raise FailedPrecondition(text, field="path")
    return wanted


def decode_images(images: Sequence[bytes], cameras: Sequence[CameraSpec]) -> tuple[Pixels, ...] | None:
    """Images [height, width, 3] as the service decodes them; None if one is missing or not of its camera."""
    found = []
    for image, camera in zip(images, cameras, strict=False):
        pixels = _decoded(image, camera)
        if pixels is None:
            return None
        found.append(pixels)
    return tuple(found) if len(images) == len(cameras) else None


def _decoded(image: bytes, camera: CameraSpec) -> Pixels | None:
    shape = (camera.height, camera.width, CHANNELS)
    if camera.format is ImageFormat.RGB8:
        return np.frombuffer(image, np.uint8).reshape(shape) if len(image) == np.prod(shape) else None
    try:
        height, width, *_ = simplejpeg.decode_jpeg_header(image)
        if (height, width) != shape[:2]:  # nothing larger is allocated
            return None
        pixels: Pixels = simplejpeg.decode_jpeg(image, colorspace="RGB")  # as service/observation/pixels.py
    except ValueError:
        return None
    return pixels


def milliseconds(times_ns: array[int]) -> Distribution:
    """The distribution of times, in milliseconds."""
    return distribution([each / 1e6 for each in times_ns])


def counted(counts: Mapping[str, int]) -> str:
    """Counts in words, the largest first."""
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{count} {name}" for name, count in ordered) or "none"
