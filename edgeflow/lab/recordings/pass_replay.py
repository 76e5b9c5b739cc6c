"""Recorded passes through a control loop, step by step, with every outcome and answer compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Pace
from edgeflow.engine.control.engine import PassEngine
from edgeflow.engine.control.loop import ControlLoop
from edgeflow.engine.control.recording import answer_of, outcome_of, shape_text
from edgeflow.engine.executor import Running
from edgeflow.ipc.messages import CloseSession, FrameResult, Message, OpenSession, SubmitFrame
from edgeflow.lab.recordings.exact_report import (
    ExactReport,
    ReplayDifference,
    answer_difference,
    bits,
    outcome_difference,
    parts_apart,
    value_difference,
)
from edgeflow.lab.recordings.pixels import RecordedPixels
from edgeflow.lab.recordings.planned import PlannedScheduler, ReplayStopped
from edgeflow.lab.recordings.stand_ins import StandIns, blank
from edgeflow.pass_records import (
    AnyPassRecord,
    ClosedRecord,
    CommitRecord,
    EngineRecord,
    FrameAnswer,
    HashedFrame,
    LaunchRecord,
    OfferRecord,
    OpenedRecord,
    ResetRecord,
    SeenRecord,
    pixel_hash,
)
from edgeflow.scheduler.plan import FrameRef, Segment
from edgeflow_client.clock import ManualClock
from edgeflow_client.types import ActionSchema

Found = TypeVar("Found")
LOST = "records before them are lost, until their session's next epoch"
NO_PIXELS = "the pixels of a frame are not in the recording, until their session's next epoch"
OTHER_PIXELS = "the pixels of a frame are not those that the worker had, until their session's next epoch"
UNKNOWN = "the opening of their session is lost"
NOT_LAUNCHED = "the record of their pass is lost"


@dataclass(slots=True, kw_only=True)
class _ReplayedSession:
    """A session as the replay has it."""

    opening: OpenSession
    schema: ActionSchema
    epoch: int
    unlike: str = ""
    """The reason why its answers cannot be compared; "" if they can."""
    is_current: bool = True
    """False after lost records, until a record says which epoch it is in."""
    last: HashedFrame | None = None
    """Its last frame."""


class PassReplay:
    """Replays records one by one on one engine. config: of the recorded service. pixels: of the recorded frames."""

    def __init__(self, engine: PassEngine, config: ServiceConfig, pixels: RecordedPixels, report: ExactReport) -> None:
        self._engine = engine
        self._config = config
        self._pixels = pixels
        self._report = report
        self._stand_ins = StandIns(engine)
        self._sessions: dict[int, _ReplayedSession] = {}
        self._running: dict[int, Running[FrameRef]] = {}
        self._filled: set[FrameRef] = set()  # frames that began in lost records, and whose slots are filled
        self._published: list[FrameAnswer] = []
        self._clock = ManualClock()
        self._planned: PlannedScheduler
        self._loop: ControlLoop
        self._begin()

    def step(self, record: AnyPassRecord) -> bool:
        """Replay a record; False if the replay cannot go on."""
        try:
            self._step(record)
        except ReplayStopped as stop:
            self._report.stopped = str(stop)
            return False
        return True

    def lose(self) -> None:
        """Records are missing here: no session is known to be as it was before its next epoch."""
        known = list(self._sessions.values())
        self._begin()
        self._turn_known = False
        for each in known:
            session = self._open(each.opening, UNKNOWN if each.unlike == UNKNOWN else LOST)
            session.epoch, session.last, session.is_current = each.epoch, each.last, False

    def _begin(self) -> None:
        """A loop without sessions."""
        for running in self._running.values():
            self._engine.collect(running.ticket)
        for session in self._sessions:
            self._planned.expect()
            self._loop.close(CloseSession(session))
        self._running.clear()
        self._sessions.clear()
        self._filled.clear()
        self._turn_known = True  # the present turn of the loop began after the last lost records
        self._planned = PlannedScheduler()
        self._loop = ControlLoop(
            self._engine,
            self._planned,
            self._clock,
            self._publish,
            default_unnorm_key=self._config.unnorm_key,
            pacer=None,
            trajectory=self._config.trajectory,
        )

    def _publish(self, message: Message) -> None:
        if isinstance(message, FrameResult):
            self._published.append(answer_of(message))

    def _step(self, record: AnyPassRecord) -> None:
        self._clock.advance_to_ns(record.time_ns)
        match record:
            case EngineRecord():
                self._report.workers += 1
                self._begin()
            case OpenedRecord():
                self._report.sessions += 1
                self._open(record.message, "")
            case ClosedRecord():
                self._planned.expect(left=record.left)
                self._loop.close(CloseSession(record.session))
                self._sessions.pop(record.session, None)
            case ResetRecord():
                self._planned.expect(left=record.left)
                self._loop.reset(record.message)
                self._enter(record.session, record.epoch, begins=True)
            case SeenRecord():
                self._enter(record.frame.session, record.frame.epoch)
                reads = self._engine.policy.inputs.history > 1
                self._loop.supersede([self._message(record.frame, record.time_ns, reads=reads)])
            case OfferRecord():
                self._offer(record)
            case LaunchRecord():
                self._turn_known = True
                self._launch(record)
            case CommitRecord():
                self._turn_known = True
                self._commit(record)

    # Sessions.

    def _open(self, message: OpenSession, unlike: str) -> _ReplayedSession:
        self._planned.expect()
        if message.session in self._sessions:  # its closing is lost
            self._loop.close(CloseSession(message.session))
        if not self._loop.open(message):
            raise ReplayStopped(f"the policy rejects session {message.session}, which was open")
        key = message.unnorm_key or self._config.unnorm_key or None
        schema = self._engine.policy.action_schema(key)
        session = _ReplayedSession(opening=message, schema=schema, epoch=message.epoch, unlike=unlike)
        self._sessions[message.session] = session
        return session

    def _session(self, number: int, epoch: int) -> _ReplayedSession:
        """A session, opened with default settings where its opening is lost."""
        if number in self._sessions:
            return self._sessions[number]
        return self._open(OpenSession(session=number, epoch=epoch, pace=Pace(), unnorm_key=""), UNKNOWN)

    def _enter(self, number: int, epoch: int, *, begins: bool = False) -> None:
        """A record of an epoch. begins: it is the first of the epoch, as far as this is a new one.

        Without that, a new epoch began here if the one before is known: its first records may be lost otherwise. So
        may those of the turn in which records were lost, since the loop takes superseded frames before a reset.
        """
        session = self._sessions.get(number)
        if session is None:
            return
        if epoch > session.epoch:
            session.epoch = epoch
            if (begins or session.is_current) and self._turn_known and session.unlike != UNKNOWN:
                session.unlike = ""
        session.is_current = True

    # Frames.

    def _offer(self, record: OfferRecord) -> None:
        frame = record.frame
        self._report.frames += 1
        if record.rows and all(each.frame != frame.ref for each in record.left):
            self._session(frame.session, frame.epoch)
        self._enter(frame.session, frame.epoch)
        message = self._message(frame, record.time_ns)
        if (session := self._sessions.get(frame.session)) is not None:
            session.last = frame
        self._planned.expect(left=record.left)
        self._loop.accept(message, record.arrived_ns)
        rows = self._planned.rows if self._planned.offered else 0
        if rows != record.rows:
            self._differ("prompt", frame.ref, dimension="rows", recorded=record.rows, replayed=rows)

    def _message(self, frame: HashedFrame, time_ns: int, *, reads: bool = True) -> SubmitFrame:
        """A frame with its pixels, or with black ones where they are lost. reads: its pixels matter."""
        images = self._pixels.find(frame.session, frame.seq, frame.sizes, time_ns) if reads else None
        session = self._sessions.get(frame.session)
        if images is None:
            if reads and session is not None:
                session.unlike = session.unlike or NO_PIXELS
            return frame.message(blank(frame.sizes))
        found = tuple(map(pixel_hash, images))
        if found != frame.pixels and not self._report.exact:
            self._report.other_pixels += 1
        elif found != frame.pixels:
            camera = [mine == theirs for mine, theirs in zip(found, frame.pixels, strict=True)].index(False)
            name, theirs = self._engine.policy.inputs.cameras[camera].name, frame.pixels[camera]
            self._differ("pixels", frame.ref, dimension=name, recorded=theirs, replayed=found[camera])
            if session is not None:
                session.unlike = session.unlike or OTHER_PIXELS
        return frame.message(images)

    def _stand_in(self, segment: Segment[FrameRef]) -> None:
        """Offer a frame in place of one whose record is lost."""
        ref, rows = segment.sequence, segment.length - segment.drafts
        session = self._session(ref.session, ref.epoch)
        self._enter(ref.session, ref.epoch)
        message = self._stand_ins.frame(ref, rows, session.last)
        if message is None:
            raise ReplayStopped(f"frame {ref.seq} of session {ref.session} is lost, and no prompt has its {rows} rows")
        self._planned.expect()
        self._loop.accept(message, 0)

    # Passes.

    def _launch(self, record: LaunchRecord) -> None:
        planned = record.planned
        segments = () if planned is None else planned.segments
        prompts = {each.sequence: each for each in segments if each.stage == 0}
        for ref, segment in prompts.items():
            if ref not in self._planned.waiting:
                self._stand_in(segment)
            elif self._planned.waiting[ref] != segment.length - segment.drafts:
                raise ReplayStopped(
                    f"the prompt of frame {ref.seq} of session {ref.session} has another length than planned"
                )
        for segment in segments:
            if segment.stage and segment.sequence not in self._planned.begun | self._filled:
                self._stand_ins.prefill(segment, self._session(segment.sequence.session, segment.sequence.epoch).last)
                self._filled.add(segment.sequence)
        frames = [ref for ref in record.begun if ref in self._planned.waiting]
        self._planned.expect(left=record.left, frames=frames, planned=planned)
        eager = self._eager_passes
        running = self._guarded(lambda: self._loop.launch(self._clock.now_ns()))
        self._compare_rejections(record)
        if planned is None or running is None:
            return
        self._report.passes += 1
        self._running[planned.number] = running
        for ref in prompts:
            self._report.begun(ref, planned.number)
        replayed = self._engine.graphs is not None and self._eager_passes == eager
        ran = shape_text(running) if replayed else ""
        if ran != record.ran and self._report.exact:
            self._differ("shape", segments[0].sequence, planned.number, recorded=record.ran, replayed=ran)

    def _compare_rejections(self, record: LaunchRecord) -> None:
        for ref in set(self._planned.rejected) ^ set(record.rejected):
            session = self._sessions.get(ref.session)
            if session is not None and not session.unlike:
                here = ref in self._planned.rejected
                self._differ("rejected", ref, recorded=ref in record.rejected, replayed=here)

    def _commit(self, record: CommitRecord) -> None:
        running = self._running.pop(record.pass_number, None)
        if running is None:
            for answer in record.answers:
                self._report.not_comparable[self._unlike(answer) or NOT_LAUNCHED] += 1
            return
        self._planned.expect(left=record.left)
        self._published.clear()
        self._guarded(lambda: self._loop.commit(running))
        if self._report.exact:
            self._compare_outcomes(record)
        found = {answer.ref: answer for answer in self._published}
        for answer in record.answers:
            if unlike := self._unlike(answer):
                self._report.not_comparable[unlike] += 1
            else:
                self._compare_answer(answer, found.get(answer.ref), record.pass_number)

    def _compare_outcomes(self, record: CommitRecord) -> None:
        for recorded, outcome in zip(record.outcomes, self._planned.outcomes, strict=True):
            session = self._sessions.get(recorded.frame.session)
            if session is None or session.unlike or recorded.frame.epoch != session.epoch:
                continue
            difference = outcome_difference(recorded, outcome_of(outcome), record.pass_number)
            if difference is not None:
                self._report.note(difference)

    def _compare_answer(self, recorded: FrameAnswer, replayed: FrameAnswer | None, number: int) -> None:
        report, ref = self._report, recorded.ref
        report.answers += 1
        report.actions += recorded.horizon
        if replayed is None:
            self._differ(
                "answer", ref, number, recorded="an answer", replayed="none: its drafts were verified otherwise"
            )
            return
        schema = self._sessions[ref.session].schema
        difference = answer_difference(recorded, replayed, schema, number)
        if difference is None:
            report.equal += 1
            report.equal_actions += recorded.horizon
            return
        report.note(difference)
        theirs, mine = bits(recorded), bits(replayed)
        if theirs.shape != mine.shape:
            return
        report.equal_actions += int((theirs.view(np.int64) == mine.view(np.int64)).all(1).sum())
        if difference.size is not None:
            report.first_action = report.first_action or difference
        apart = parts_apart(recorded, replayed, np.subtract(schema.high, schema.low))
        if float(apart.max()) > report.largest_part:
            report.largest = value_difference(recorded, replayed, int(apart.argmax()), schema, number)
            report.largest_part = float(apart.max())

    def _guarded(self, run: Callable[[], Found]) -> Found:
        """Run a part of a pass. Where the replay has parted from the recording, the plan may not fit: stop then."""
        try:
            return run()
        except (RuntimeError, ValueError, IndexError, KeyError) as error:
            if self._report.differences or any(each.unlike for each in self._sessions.values()):
                raise ReplayStopped(f"a recorded pass does not fit what this loop computed: {error}") from error
            raise

    def _unlike(self, answer: FrameAnswer) -> str:
        """The reason why an answer cannot be compared; "" if it can."""
        session = self._sessions.get(answer.session)
        return UNKNOWN if session is None else session.unlike

    @property
    def _eager_passes(self) -> int:
        return self._engine.graphs.eager_passes if self._engine.graphs is not None else 0

    def _differ(self, what: str, ref: FrameRef, number: int | None = None, **found: object) -> None:
        self._report.note(ReplayDifference.of(what, ref, number, **found))
