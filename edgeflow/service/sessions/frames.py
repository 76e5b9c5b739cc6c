"""Events of a session for its robot, frames inside the service, the state of a session's ring, and invalid outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from edgeflow.contract import Chunk, Speculation
from edgeflow.ipc.framing import Payloads
from edgeflow.ipc.messages import FrameResult, PassSpan, TimedFrameResult
from edgeflow.scheduler.execution import AnswerExecution
from edgeflow.service.observation.requests import CheckedFrame
from edgeflow_client.errors import RequestError
from edgeflow_client.reasons import Reason
from edgeflow_client.trajectory import ChunkReport, Playing
from edgeflow_client.types import Command, Disposition, StageTimings


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusEvent:
    """The outcome of a frame, or of the consecutively superseded frames seq to last_seq."""

    seq: int
    disposition: Disposition
    code: str = ""
    reason: str = ""
    text: str = ""
    last_seq: int = 0
    field: str = ""
    """The rejected field, also named in the text."""

    @classmethod
    def rejected(cls, seq: int, error: RequestError) -> StatusEvent:
        """The status of a rejected frame."""
        return cls(
            seq=seq,
            disposition=Disposition.REJECTED,
            code=error.code,
            reason=error.reason,
            text=error.text,
            field=error.field,
        )

    @property
    def frames(self) -> int:
        return max(self.last_seq - self.seq, 0) + 1


@dataclass(frozen=True, slots=True)
class NoticeEvent:
    """A notice about the whole session."""

    kind: str
    epoch: int
    code: str = ""
    text: str = ""
    deadline_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReceiptEvent:
    """The frame `seq`, and all before it, have arrived."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionEvent:
    """A command for the robot. HOLD and STOP have seq 0 and no chunk."""

    epoch: int
    command: Command
    reason: str
    valid_for_ms: int
    seq: int = 0
    stamp_ns: int = 0
    chunk: Chunk | None = None
    token_ids: tuple[int, ...] = ()
    timings: StageTimings = dataclasses.field(default_factory=StageTimings)
    server_ns: int = 0
    """Time from receiving the frame to sending the action."""
    age_ns: int = 0
    """server_ns plus the frame's transport delay in excess of the session's quickest frame."""
    max_age_ms: int = 0
    """The action must not be executed once its frame is older than this."""
    settled: int = 0
    """Number of leading tokens that are verified."""
    tolerance_bins: int = 0
    """How far a verified token may be from its draft."""
    max_passes: int = 0
    """Passes after which the frame would have been answered at the latest; 0 for a frame without drafts."""
    report: ChunkReport = dataclasses.field(default_factory=ChunkReport)
    """How the chunk was made."""
    execution: AnswerExecution | None = None
    """How it is executed; None for a client that asks for no execution."""
    decoding_ns: int = 0
    """Time from receiving the frame to the start of its decoding; known where there are spans."""
    spans: tuple[PassSpan, ...] = ()
    """Its passes, in time since the frame was received; empty unless the service is traced or recorded."""

    @property
    def values(self) -> tuple[float, ...]:
        """The values of the chunk, row by row; empty for HOLD and STOP."""
        return self.chunk.values if self.chunk is not None else ()

    @property
    def unsettled(self) -> int:
        """Number of tokens of the action that are not verified."""
        return len(self.token_ids) - self.settled


@dataclass(frozen=True, slots=True)
class End:
    """How a stream ends."""

    code: str
    """A gRPC status name."""
    reason: Reason
    """The reason of the final HOLD or STOP, also used in metrics and logs."""
    text: str = ""
    """One line for people."""
    command: Command = Command.HOLD
    """The final command."""


Event: TypeAlias = StatusEvent | NoticeEvent | ActionEvent | ReceiptEvent


INVALID_IN_A_ROW = 3  # consecutive invalid outputs that put a session in fault
MOST_SENT = 256  # chunks that a robot may report as executed: at 50 Hz, those of the last five seconds


@dataclass(slots=True, kw_only=True)
class SessionFrame:
    """A frame inside the service, with its times."""

    frame: CheckedFrame
    epoch: int
    received_ns: int
    over_rate: bool
    waited_for_turn: bool = False
    payload: Payloads = b""
    decoding_ns: int = 0
    """When it came to the decoder."""
    decode_ns: int = 0
    sent_ns: int = 0
    speculation: Speculation | None = None
    """The session's speculation when the frame was sent to the worker."""
    seen_only: bool = False
    """It is not answered: the worker gets it for the session's history."""
    execution: AnswerExecution | None = None
    """How its answer is executed; None for a client that asks for no execution."""

    @property
    def decoding_after_ns(self) -> int:
        """Time from its arrival to the start of its decoding, which another process ends before it comes here."""
        elsewhere_ns = self.decode_ns if self.frame.pixels is not None else 0
        return max(self.decoding_ns - elsewhere_ns - self.received_ns, 0)

    def pending_answer(self, message: FrameResult, *, whole: bool) -> PendingAnswer:
        """The answer to this frame. whole: the robot gets all rows."""
        front_wait_ns = self.sent_ns - self.received_ns - self.decode_ns
        timings = StageTimings(
            self.decode_ns, message.queue_ns + max(front_wait_ns, 0), message.inference_ns, message.passes
        )
        return PendingAnswer(
            track=self,
            chunk=message.chunk,
            token_ids=tuple(message.token_ids),
            timings=timings,
            settled=message.settled,
            whole=whole,
            report=message.report,
            spans=self._spans(message.spans) if isinstance(message, TimedFrameResult) else (),
        )

    def _spans(self, spans: Sequence[PassSpan]) -> tuple[PassSpan, ...]:
        """The passes in time since the frame was received."""
        began_ns = self.received_ns
        return tuple(
            dataclasses.replace(each, start_ns=max(each.start_ns - began_ns, 0), end_ns=max(each.end_ns - began_ns, 0))
            for each in spans
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAnswer:
    """An answer that is not sent yet."""

    track: SessionFrame
    chunk: Chunk
    token_ids: tuple[int, ...]
    timings: StageTimings
    settled: int
    """Number of leading tokens that are verified."""
    whole: bool
    """The robot gets the whole chunk; otherwise the row that is due."""
    report: ChunkReport = field(default_factory=ChunkReport)
    spans: tuple[PassSpan, ...] = ()
    """As in ActionEvent."""

    def late_ns(self, age_ns: int) -> int:
        """Latency of the row that is due, for a frame of this age; for a single action, the age itself."""
        return age_ns - round(self.chunk.step_at(age_ns / 1e6) * self.chunk.step_ms * 1e6)

    def events(self, now_ns: int, delay_ns: int, valid_for_ms: int, max_age_ms: int) -> list[Event]:
        """The events that send it now. delay_ns: transport delay in excess of the session's quickest frame.

        max_age_ms: the age limit of a row, counted from the moment for which the row is meant.
        """
        frame = self.track.frame
        server_ns = now_ns - self.track.received_ns
        age_ns = server_ns + delay_ns
        chunk = self.chunk
        if not self.whole and chunk.horizon > 1:
            step = chunk.step_at(age_ns / 1e6)
            max_age_ms += round(step * chunk.step_ms)  # robots compare it with the frame's age, not the row's
            chunk = Chunk(chunk.row(step))
        speculation = self.track.speculation
        action = ActionEvent(
            epoch=self.track.epoch,
            command=Command.ACT,
            reason="",
            valid_for_ms=valid_for_ms,
            seq=frame.seq,
            stamp_ns=frame.stamp_ns,
            chunk=chunk,
            token_ids=self.token_ids,
            timings=self.timings,
            server_ns=server_ns,
            age_ns=age_ns,
            max_age_ms=max_age_ms,
            settled=self.settled,
            tolerance_bins=speculation.tolerance_bins if speculation else 0,
            max_passes=speculation.most_passes(len(self.token_ids)) if speculation else 0,
            report=self.report,
            execution=self.track.execution,
            decoding_ns=self.track.decoding_after_ns if self.spans else 0,
            spans=self.spans,
        )
        return [action, StatusEvent(seq=frame.seq, disposition=Disposition.ACTED)]


class RingState(Enum):
    """The state of a session's ring, its KV slots in the worker.

    While a session is parked, its ring and its capacity are free for others. Its next frame waits until the worker has
    opened a ring again. If no capacity is left, the frame is dropped with the reason, the robot holds, and the next
    frame tries again.
    """

    HELD = "held"
    FREED = "freed"  # released after a silence; requested again with the next frame
    WANTED = "wanted"  # a frame waits for it
    ASKED = "asked"  # OpenSession was sent
    LOST = "lost"  # lost with its worker; the plane requests one from the next worker


class InvalidOutputs:
    """Counts consecutive invalid outputs. INVALID_IN_A_ROW of them are a fault, which only `rearm` ends."""

    def __init__(self) -> None:
        self.fault = False
        self._in_a_row = 0

    def count_valid(self) -> None:
        """Count a valid output."""
        self._in_a_row = 0

    def count_invalid(self) -> bool:
        """Count an invalid output; True if it causes a fault."""
        self._in_a_row += 1
        self.fault = self._in_a_row >= INVALID_IN_A_ROW
        return self.fault

    def rearm(self) -> bool:
        """Clear the fault and the count; True if there was a fault."""
        was, self.fault, self._in_a_row = self.fault, False, 0
        return was


class SentChunks:
    """The chunks sent last to a robot, by frame. Older ones count as unknown.

    halted_at: the newest frame answered before the last `halt`, whether or not its answer was sent; 0 = none.
    halt_reason: the reason of that `halt`; a new session starts as after a change of epoch.
    """

    def __init__(self) -> None:
        self.halted_at = 0
        self.halt_reason: str = Reason.EPOCH_CHANGED
        self._horizons: dict[int, int] = {}
        self._stamps_ns: dict[int, int] = {}
        self._answered = 0
        self._begun = 0  # the first frame whose answer was sent after the last halt; 0 = none
        self._rested = False

    @property
    def begun(self) -> bool:
        """True once an answer was sent after the last `halt`."""
        return self._begun > 0

    def answered(self, seq: int) -> None:
        """Record that the worker answered a frame."""
        self._answered = max(self._answered, seq)

    def add(self, seq: int, horizon: int, stamp_ns: int = 0) -> None:
        """Record that the answer to a frame of this stamp was sent."""
        self._horizons[seq], self._stamps_ns[seq] = horizon, stamp_ns
        self._begun = self._begun or seq
        if len(self._horizons) > MOST_SENT:
            oldest = next(iter(self._horizons))
            del self._horizons[oldest], self._stamps_ns[oldest]

    def has(self, seq: int, step: int) -> bool:
        """True if this row of the answer to this frame was sent."""
        return step < self._horizons.get(seq, 0)

    def executed_age_ns(self, frame: CheckedFrame) -> int | None:
        """Age of the frame whose answer the robot executed at the capture of this one; None if it reports none.

        A single action is executed from its arrival until the robot rests.
        """
        seq = 0
        if frame.playing is not None:
            seq = frame.playing.seq
        elif frame.arrived is not None and not frame.resting and self._horizons.get(frame.arrived.seq) == 1:
            seq = frame.arrived.seq
        return max(frame.stamp_ns - self._stamps_ns[seq], 0) if seq in self._stamps_ns else None

    def may_continue(self, playing: Playing | None) -> bool:
        """True if this row was sent after the last `halt` and belongs to a chunk of several actions."""
        return (
            playing is not None
            and self.has(playing.seq, playing.step)
            and self._horizons[playing.seq] > 1
            and playing.seq > self.halted_at
        )

    def may_follow(self, continues: int) -> bool:
        """True if an answer that continues this frame's chunk may be sent; 0 = a fresh chunk, which always may.

        After a `halt` the robot rests. Unless a chunk of this frame or an earlier one was sent since, the
        continuation would start it in mid-motion.
        """
        return not continues or 0 < self._begun <= continues

    def halt(self, reason: str) -> None:
        """Forbid continuations of the chunks sent so far: the robot holds, or a new epoch begins."""
        self.halted_at, self._begun, self.halt_reason, self._rested = self._answered, 0, reason, True

    def take_rest(self) -> bool:
        """True for the first frame after a `halt`."""
        rested, self._rested = self._rested, False
        return rested
