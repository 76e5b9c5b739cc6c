"""Records the passes of a control loop: every message, decision of the scheduler, outcome and answer, in order.

The loop is the ordinary one between two listeners: `RecordedLoop` notes the messages that come in, `ListeningPlanner`
the answers of its scheduler. A loop that is not recorded has neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import xxhash

from edgeflow.contract import Pace, StageProgram
from edgeflow.engine.control.engine import PassEngine
from edgeflow.engine.control.loop import ControlLoop
from edgeflow.engine.executor import Running
from edgeflow.ipc.messages import CloseSession, FrameResult, Message, OpenSession, ResetSession, SubmitFrame
from edgeflow.pass_records import (
    ClosedRecord,
    CommitRecord,
    EngineFacts,
    EngineRecord,
    FrameAnswer,
    HashedFrame,
    LaunchRecord,
    OfferRecord,
    OpenedRecord,
    PassOutcome,
    PassRecord,
    ResetRecord,
    SeenRecord,
)
from edgeflow.scheduler.cost import PassSample
from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Outcome, Pass
from edgeflow.scheduler.scheduler import PassPlanner, SchedulerCounts
from edgeflow.scheduler.turns import TokenBucket
from edgeflow_client.recording.recorder import wall_clock
from edgeflow_client.recording.ring import RecordRing
from edgeflow_client.trajectory import ChunkReport

LONGEST_SHAPE = 1000  # characters


class PassRecorder:
    """Writes records of passes into a ring, and never waits. One thread uses it.

    facts: of the engine, the first record.
    """

    def __init__(self, ring: RecordRing, facts: EngineFacts) -> None:
        self._ring = ring
        self._encoder = msgspec.msgpack.Encoder()
        self._wall_ns = wall_clock(ring)
        self.write(EngineRecord, facts=facts)

    def loop(
        self,
        engine: PassEngine,
        scheduler: PassPlanner,
        clock: Any,
        publish: Callable[[Message], None],
        **options: Any,
    ) -> ControlLoop:
        """A control loop that is recorded; arguments as in ControlLoop."""
        return RecordedLoop(self, engine, scheduler, clock, publish, **options)

    def write(self, kind: type[PassRecord], **fields: Any) -> None:
        """Write a record of the present moment; it is lost if the ring has no room."""
        time_ns = self._wall_ns(time.monotonic_ns())
        try:
            self._ring.put(self._encoder.encode(kind(time_ns=time_ns, **fields)))
        except Exception:  # a record that cannot be made costs no worker
            self._ring.lose()


class ListeningPlanner:
    """Passes everything on to a scheduler, and notes what the record of this step of the loop needs."""

    def __init__(self, planner: PassPlanner) -> None:
        self._planner = planner
        self.begin()

    def begin(self) -> None:
        """A step of the loop begins: forget the one before."""
        self.left: list[Departure] = []
        self.begun: dict[FrameRef, None] = {}
        self.rejected: list[FrameRef] = []
        self.rows = 0
        self.planned: Pass[FrameRef] | None = None
        self.number = 0
        self.outcomes: Sequence[Outcome[FrameRef]] = ()

    @property
    def counts(self) -> SchedulerCounts:
        return self._planner.counts

    @property
    def holds_frames(self) -> bool:
        return self._planner.holds_frames

    def open(
        self, session: int, epoch: int, pace: Pace, program: StageProgram | None, turns: TokenBucket | None
    ) -> None:
        self._planner.open(session, epoch, pace, program, turns)

    def change_pace(self, session: int, pace: Pace) -> None:
        self._planner.change_pace(session, pace)

    def close(self, session: int) -> list[Departure]:
        return self._noted(self._planner.close(session))

    def reset(self, session: int, epoch: int) -> list[Departure]:
        return self._noted(self._planner.reset(session, epoch))

    def offer(self, frame: Frame) -> list[Departure]:
        self.rows = frame.rows
        return self._noted(self._planner.offer(frame))

    def next_frames(self, now_ns: int) -> list[FrameRef]:
        frames = self._planner.next_frames(now_ns)
        self.begun.update(dict.fromkeys(frames))
        return frames

    def is_finishing(self, session: int) -> bool:
        return self._planner.is_finishing(session)

    def reject(self, frame: FrameRef) -> list[Departure]:
        self.rejected.append(frame)
        return self._planner.reject(frame)

    def plan(self, now_ns: int) -> Pass[FrameRef] | None:
        self.planned = self._planner.plan(now_ns)
        return self.planned

    def commit(self, number: int, outcomes: Sequence[Outcome[FrameRef]], now_ns: int) -> list[Departure]:
        self.number, self.outcomes = number, outcomes
        return self._noted(self._planner.commit(number, outcomes, now_ns))

    def expire(self, now_ns: int) -> list[Departure]:
        return self._noted(self._planner.expire(now_ns))

    def wake_at_ns(self, now_ns: int) -> int | None:
        return self._planner.wake_at_ns(now_ns)

    def _noted(self, left: list[Departure]) -> list[Departure]:
        self.left += left
        return left


class RecordedLoop(ControlLoop):
    """A control loop whose steps are recorded. Arguments as in ControlLoop."""

    def __init__(
        self,
        recorder: PassRecorder,
        engine: PassEngine,
        scheduler: PassPlanner,
        clock: Any,
        publish: Callable[[Message], None],
        **options: Any,
    ) -> None:
        self._recorder = recorder
        self._noted = ListeningPlanner(scheduler)
        self._answered: list[FrameAnswer] = []

        def listen(message: Message) -> None:
            if isinstance(message, FrameResult):
                self._answered.append(answer_of(message))
            publish(message)

        super().__init__(engine, self._noted, clock, listen, **options)

    def open(self, message: OpenSession) -> bool:
        opened = super().open(message)
        if opened:
            self._recorder.write(OpenedRecord, session=message.session, message=message)
        return opened

    def reset(self, message: ResetSession) -> None:
        self._noted.begin()
        super().reset(message)
        self._recorder.write(ResetRecord, session=message.session, epoch=message.epoch, left=self._left)

    def close(self, message: CloseSession) -> None:
        self._noted.begin()
        super().close(message)
        self._recorder.write(ClosedRecord, session=message.session, left=self._left)

    def supersede(self, frames: Sequence[SubmitFrame]) -> None:
        super().supersede(frames)
        for frame in frames:
            self._recorder.write(SeenRecord, frame=HashedFrame.of(frame))

    def accept(self, message: SubmitFrame, arrived_ns: int) -> None:
        self._noted.begin()
        super().accept(message, arrived_ns)
        frame = HashedFrame.of(message)
        self._recorder.write(OfferRecord, frame=frame, rows=self._noted.rows, arrived_ns=arrived_ns, left=self._left)

    def launch(self, turn_ns: int) -> Running[FrameRef] | None:
        noted, eager = self._noted, self._eager_passes
        noted.begin()
        running = super().launch(turn_ns)
        if running is not None or noted.begun or noted.left:
            replayed = running is not None and self._engine.graphs is not None and self._eager_passes == eager
            self._recorder.write(
                LaunchRecord,
                begun=tuple(noted.begun),
                rejected=tuple(noted.rejected),
                planned=noted.planned,
                ran=shape_text(running) if running is not None and replayed else "",
                left=self._left,
            )
        return running

    def commit(self, running: Running[FrameRef]) -> PassSample:
        self._noted.begin()
        self._answered.clear()
        sample = super().commit(running)
        self._recorder.write(
            CommitRecord,
            pass_number=self._noted.number,
            outcomes=tuple(map(outcome_of, self._noted.outcomes)),
            left=self._left,
            answers=tuple(self._answered),
        )
        return sample

    @property
    def _left(self) -> tuple[Departure, ...]:
        return tuple(self._noted.left)

    @property
    def _eager_passes(self) -> int:
        return self._engine.graphs.eager_passes if self._engine.graphs is not None else 0


def shape_text(running: Running[Any]) -> str:
    """The shape that a pass ran in, as text."""
    return repr(running.ticket.shape)[:LONGEST_SHAPE]


def outcome_of(outcome: Outcome[FrameRef]) -> PassOutcome:
    """The outcome of a segment, for its record."""
    values = getattr(outcome, "values", None)
    return PassOutcome(
        frame=outcome.sequence,
        tokens=tuple(outcome.tokens),
        finite=outcome.finite,
        found=outcome.found,
        guesses=tuple(getattr(outcome, "guesses", ())),
        values="" if values is None else xxhash.xxh3_64_hexdigest(values.tobytes()),
    )


def answer_of(result: FrameResult) -> FrameAnswer:
    """An answer, for its record."""
    return FrameAnswer(
        session=result.session,
        epoch=result.epoch,
        seq=result.seq,
        values=result.chunk.values,
        horizon=result.chunk.horizon,
        step_ms=result.chunk.step_ms,
        token_ids=tuple(result.token_ids),
        valid=result.valid,
        passes=result.passes,
        settled=result.settled,
        queue_ns=result.queue_ns,
        inference_ns=result.inference_ns,
        report=_plain(result.report),
    )


def _plain(report: ChunkReport) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(report)
    return plain
