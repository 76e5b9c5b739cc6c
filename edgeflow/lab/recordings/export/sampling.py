"""Resamples a session at a fixed rate: per tick the newest observation, and the action in force on the robot's clock.

A tick without either is left out: the robot held, no row was due, or the newest observation is older than STALE_PERIODS
times the usual time between two. After a pause of PAUSE_NS without a tick, or of that age if it is longer, another
episode begins.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from edgeflow.lab.recordings.sessions import Images, Pixels, StoredSession, decode_images, labelled
from edgeflow_client.errors import FailedPrecondition
from edgeflow_client.recording.reader import Recording
from edgeflow_client.recording.records import (
    RecordedAnswer,
    RecordedExecution,
    RecordedHold,
    RecordedObservation,
)
from edgeflow_client.timeline import Timeline, arrival_start_ns
from edgeflow_client.types import ActionSchema

PAUSE_NS = 1_000_000_000
STALE_PERIODS = 3
MOST_STAMPS = 256
"""Frames whose capture is remembered, for their answers."""
NOT_YET = "before the first action"
NOT_DUE = "no row was due"
NO_OBSERVATION = "no observation"
BAD_IMAGE = "an image that cannot be decoded"
Row: TypeAlias = tuple[float, ...]


@dataclass(slots=True, kw_only=True)
class SampledEpoch:
    """The outcome of an epoch, or of the part of one that has the same instruction."""

    session: str
    epoch: int
    instruction: str
    frames: int = 0
    """Ticks with an observation and an action."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Ticks without, by reason."""
    episodes: list[int] = field(default_factory=list)
    """Their numbers in the dataset."""

    def leave_out(self, reason: str, ticks: int = 1) -> None:
        """Count ticks without an observation or an action."""
        self.left_out[reason] = self.left_out.get(reason, 0) + ticks


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledFrame:
    """A tick with an observation and an action."""

    epoch: SampledEpoch
    begins: bool
    """It is the first one of an episode."""
    state: Row
    """All state vectors, one after the other."""
    images: tuple[Pixels, ...]
    """[height, width, 3] per camera, in the session's order."""
    action: Row


@dataclass(frozen=True, slots=True)
class _Commanded:
    """An answer as the robot executes it, in force until `until_ns`."""

    seq: int
    values: Row
    dims: int
    timeline: Timeline
    until_ns: int

    def row_at(self, now_ns: int) -> Row | None:
        if now_ns >= self.until_ns:
            return None
        first = self.timeline.step_at(now_ns) * self.dims
        return self.values[first : first + self.dims]


class SessionSampler:
    """Makes the frames of a session at a fixed rate.

    Where the robot's recording has executed rows, they are the actions;
    otherwise the commanded rows are, by the stamps of their frames.
    """

    def __init__(self, session: StoredSession, fps: int) -> None:
        self.session, self.fps, self.schema = session, fps, schema_of(session)
        self._state_size = sum(each.size for each in session.contract.state)
        self.stale_ns = round(STALE_PERIODS * 1e9 / (session.rate_hz or fps))
        self._current: _EpochSampler | None = None
        self.epochs: list[SampledEpoch] = []
        """The epochs so far."""
        self.observations = 0

    def frames(self, recording: Recording) -> Iterator[SampledFrame]:
        """Its frames, by the records of its session in a recording."""
        for label, record, images in labelled(recording):
            if label != self.session.label:
                continue
            match record:
                case RecordedObservation():
                    self.observations += 1
                    yield from self._add_frame(record, images)
                case RecordedAnswer() | RecordedExecution() | RecordedHold() if self._current is not None:
                    self._current.add(record)
        yield from self._finish()

    def _finish(self) -> Iterator[SampledFrame]:
        """The frames up to the last observation."""
        if self._current is not None:
            yield from self._current.up_to(self._current.last_ns + 1)
        self._current = None

    def _add_frame(self, record: RecordedObservation, images: Images) -> Iterator[SampledFrame]:
        if len(images) < len(self.session.cameras) or len(record.state) != self._state_size:
            return  # it was never sent, or is not what was agreed on
        current = self._current
        if current is not None and record.epoch < current.summary.epoch:
            return
        if current is not None and current.has(record):
            yield from current.observe(record, images)
            return
        yield from self._finish()
        self._current = _EpochSampler(self, record, images)
        self.epochs.append(self._current.summary)


class _EpochSampler:
    """Ticks from the epoch's first observation to its last one, on the robot's clock."""

    def __init__(self, sampler: SessionSampler, first: RecordedObservation, images: Images) -> None:
        self._session, self._schema = sampler.session, sampler.schema
        self._fps, self._stale_ns = sampler.fps, sampler.stale_ns
        self.summary = SampledEpoch(session=self._session.label, epoch=first.epoch, instruction=first.instruction)
        self.last_ns = self._first_ns = first.stamp_ns
        self._observation, self._stamps = (first, images), {first.seq: first.stamp_ns}
        self._clock_ns = first.time_ns - first.stamp_ns  # recording's minus robot's clock, by the quickest frame
        self._tick = 0
        self._pixels: tuple[Pixels, ...] | None = None
        self._events: list[tuple[int, int, _Commanded | Row | str]] = []  # a heap: moment, order, what
        self._order = itertools.count()
        self._force: _Commanded | Row | str = NOT_YET
        self._sampled_ns: int | None = None  # the last tick that was not left out

    def has(self, record: RecordedObservation) -> bool:
        """True for an observation of this epoch and instruction."""
        return (record.epoch, record.instruction) == (self.summary.epoch, self.summary.instruction)

    def observe(self, record: RecordedObservation, images: Images) -> Iterator[SampledFrame]:
        """Take an observation, after the ticks before it."""
        if record.stamp_ns <= self.last_ns:
            return
        yield from self.up_to(record.stamp_ns)
        self.last_ns = record.stamp_ns
        self._clock_ns = min(self._clock_ns, record.time_ns - record.stamp_ns)
        self._observation, self._pixels = (record, images), None
        self._stamps[record.seq] = record.stamp_ns
        if len(self._stamps) > MOST_STAMPS:
            del self._stamps[next(iter(self._stamps))]

    def add(self, record: RecordedAnswer | RecordedExecution | RecordedHold) -> None:
        """Take what is in force from its moment on."""
        match record:
            case RecordedAnswer() if record.seq in self._stamps and not self._session.executed:
                commanded = self._commanded(record)
                if commanded is not None:
                    self._put(record.stamp_ns + record.age_ns, commanded)
            case RecordedExecution() if record.seq in self._stamps and len(record.values) == self._dims:
                self._put(self._stamps[record.seq] + record.age_ns, record.values)
            case RecordedHold():
                self._put(record.time_ns - self._clock_ns, f"{record.command.value.upper()} {record.reason}".rstrip())

    def up_to(self, end_ns: int) -> Iterator[SampledFrame]:
        """The frames of the ticks before a moment."""
        while (now_ns := self._moment_ns) < min(end_ns, self.last_ns + self._stale_ns):
            self._tick += 1
            frame = self._frame_at(now_ns)
            if frame is not None:
                yield frame
        skipped = -(-(end_ns - self._first_ns) * self._fps // 1_000_000_000) - self._tick
        if skipped > 0:
            self._tick += skipped
            self.summary.leave_out(NO_OBSERVATION, skipped)

    @property
    def _moment_ns(self) -> int:
        return self._first_ns + self._tick * 1_000_000_000 // self._fps

    @property
    def _dims(self) -> int:
        return len(self._schema.names)

    def _put(self, moment_ns: int, what: _Commanded | Row | str) -> None:
        heapq.heappush(self._events, (moment_ns, next(self._order), what))

    def _frame_at(self, now_ns: int) -> SampledFrame | None:
        while self._events and self._events[0][0] <= now_ns:
            self._take(heapq.heappop(self._events)[2])
        action = self._force.row_at(now_ns) or NOT_DUE if isinstance(self._force, _Commanded) else self._force
        pixels = None if isinstance(action, str) else self._decoded()
        if isinstance(action, str) or pixels is None:
            self.summary.leave_out(action if isinstance(action, str) else BAD_IMAGE)
            return None
        begins = self._sampled_ns is None or now_ns - self._sampled_ns > max(PAUSE_NS, self._stale_ns)
        self._sampled_ns = now_ns
        self.summary.frames += 1
        return SampledFrame(
            epoch=self.summary, begins=begins, state=self._observation[0].state, images=pixels, action=action
        )

    def _take(self, event: _Commanded | Row | str) -> None:
        force = self._force
        if isinstance(event, _Commanded) and isinstance(force, _Commanded) and event.seq < force.seq:
            return  # a robot ignores an answer that a newer one has overtaken
        self._force = event

    def _decoded(self) -> tuple[Pixels, ...] | None:
        """The images of the observation, decoded once; None if one cannot be decoded."""
        if self._pixels is None:
            self._pixels = decode_images(self._observation[1], self._session.cameras)
        return self._pixels

    def _commanded(self, answer: RecordedAnswer) -> _Commanded | None:
        """An answer from its arrival on; None if its values are not its rows."""
        if not answer.horizon or len(answer.values) != answer.horizon * self._dims:
            return None
        arrival_ns = answer.stamp_ns + answer.age_ns
        step_ns = round(answer.step_ms * 1e8 / max(answer.rate_percent, 1)) if answer.horizon > 1 else 0
        start_ns = answer.stamp_ns
        if answer.from_arrival and step_ns:
            start_ns = arrival_start_ns(start_ns, arrival_ns, step_ns)
        timeline = Timeline(start_ns, step_ns, min(answer.rows or answer.horizon, answer.horizon))
        valid_ns = answer.valid_for_ms * 1_000_000 or self._schema.motion_ns * answer.horizon
        until_ns = timeline.valid_until_ns(arrival_ns, valid_ns, answer.max_age_ms * 1_000_000 or None)
        if step_ns and any(self._schema.relative):
            until_ns = min(until_ns, timeline.over_ns)  # a displacement is not executed twice
        return _Commanded(answer.seq, answer.values, self._dims, timeline, until_ns)


def schema_of(session: StoredSession) -> ActionSchema:
    """The meaning of a session's actions; FailedPrecondition if its opening lacks it."""
    schema = session.contract.schema
    if schema is None:
        raise FailedPrecondition(f"session {session.label}: its opening has no action schema", field="path")
    return schema
