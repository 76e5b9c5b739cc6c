"""The frames that one robot offered, each with exactly one fate."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from edgeflow_client.reasons import Reason
from edgeflow_client.timeline import Timeline
from edgeflow_client.types import Disposition, StageTimings

_NOT_TOLD = StageTimings()


class Fate(str, Enum):
    """The disposition reported by the service, or UNANSWERED."""

    ACTED = "acted"
    SUPERSEDED = "superseded"
    REJECTED = "rejected"
    DROPPED = "dropped"
    UNANSWERED = "unanswered"


@dataclass(slots=True, kw_only=True)
class SentFrame:
    """Times in nanoseconds on the client's monotonic clock, 0 = not yet or never.

    scheduled: when the frame was due, which is its stamp: a frame sent late is older. sent: when its write began.
    received: when its action, or another disposition, arrived. server, timings: as reported by the service. valid_for,
    max_age: limits that the answer carries; max_age 0 = none. ahead: from the frame's stamp to the moment of the row
    that was due on receipt; 0 for a single action.
    """

    number: int
    scheduled_ns: int
    sent_ns: int = 0
    received_ns: int = 0
    fate: Fate = Fate.UNANSWERED
    reason: str = Reason.NO_ANSWER
    valid_for_ms: int = 0
    max_age_ms: int = 0
    ahead_ms: float = 0.0
    server_ns: int = 0
    timings: StageTimings = _NOT_TOLD
    unsettled: int = 0
    """Tokens of the action that are not verified."""
    continued: bool = False
    late: bool = False
    executed: Timeline | None = None
    """continued, late, executed: as in robots/playing.Seamed."""
    execution: str = ""
    """How the service said that the answer is to be executed; empty = it did not."""

    @property
    def age_ns(self) -> int:
        return self.received_ns - self.scheduled_ns

    def missed(self, limit_s: float | None) -> bool:
        """True if the due row was too old on arrival: beyond limit_s, or else its own limit, or else its validity."""
        limit_ms = limit_s * 1000 if limit_s else self.max_age_ms or self.valid_for_ms
        return self.age_ns / 1e6 - self.ahead_ms > limit_ms

    def latencies_ns(self, until_ns: int) -> list[int]:
        """Age of the frame when each row of its answer was executed, until another answer took over."""
        timeline = self.executed
        if timeline is None:
            return []
        limit_ns = self.max_age_ms * 1_000_000 or None
        until_ns = min(until_ns, timeline.valid_until_ns(self.received_ns, self.valid_for_ms * 1_000_000, limit_ns))
        later = range(timeline.step_at(self.received_ns) + 1, timeline.horizon)
        moments = [self.received_ns, *(ns for step in later if (ns := timeline.moment_ns(step)) < until_ns)]
        return [ns - self.scheduled_ns for ns in moments]

    @property
    def start_ns(self) -> int:
        """Service time minus inference: from receipt to the first pass, and from the last pass to the stream."""
        return self.server_ns - self.timings.inference_ns


@dataclass(frozen=True, slots=True)
class Happening:
    """An event at a robot."""

    at_ns: int
    kind: str
    """`opened`, `refused`, `lost`, `hold`, `stop`, `notice` or `contradicted`."""
    reason: str
    text: str = ""


class Ledger:
    """The record of one robot; frames are numbered from 1 across its streams."""

    def __init__(self, robot: int) -> None:
        self.robot = robot
        self.frames: list[SentFrame] = []
        self.happenings: list[Happening] = []
        self._open: dict[int, SentFrame] = {}

    @property
    def in_flight(self) -> int:
        """Frames whose fate may still be reported."""
        return len(self._open)

    def offer(self, scheduled_ns: int, sent_ns: int) -> SentFrame:
        """Record that a frame is sent."""
        record = SentFrame(number=len(self.frames) + 1, scheduled_ns=scheduled_ns, sent_ns=sent_ns)
        self.frames.append(record)
        self._open[record.number] = record
        return record

    def offer_in_vain(self, scheduled_ns: int) -> None:
        """Record a frame that was due while there was no stream."""
        self.frames.append(
            SentFrame(number=len(self.frames) + 1, scheduled_ns=scheduled_ns, reason=Reason.DISCONNECTED)
        )

    def act(
        self,
        number: int,
        *,
        stamp_ns: int,
        received_ns: int,
        valid_for_ms: int,
        server_ns: int,
        timings: StageTimings,
        max_age_ms: int = 0,
        unsettled: int = 0,
        continued: bool = False,
        late: bool = False,
        executed: Timeline | None = None,
        execution: str = "",
        horizon: int = 1,
        step_ms: float = 0.0,
    ) -> bool:
        """Record an action for a frame; False when no such frame waits for one."""
        record = self._open.get(number)
        if record is None or record.scheduled_ns != stamp_ns:
            self.happen(received_ns, "contradicted", Reason.ACTION_FOR_NO_FRAME, f"frame {number}")
            return False
        del self._open[number]
        record.fate, record.reason, record.received_ns = Fate.ACTED, "", received_ns
        record.valid_for_ms, record.max_age_ms = valid_for_ms, max_age_ms
        if horizon > 1 and step_ms > 0:
            record.ahead_ms = max(0, min(int(record.age_ns / 1e6 / step_ms), horizon - 1)) * step_ms
        record.server_ns, record.timings, record.unsettled = server_ns, timings, unsettled
        record.continued, record.late, record.executed, record.execution = continued, late, executed, execution
        return True

    def dispose(self, first: int, last: int, disposition: Disposition, reason: str, received_ns: int) -> None:
        """Record the disposition of frames; an ACTED that follows its action adds nothing."""
        for number in range(first, max(first, last) + 1):
            record = self._open.pop(number, None)
            if record is not None:
                record.fate, record.reason, record.received_ns = Fate(disposition.value), reason, received_ns
            elif disposition is not Disposition.ACTED or not self._was_acted(number):
                self.happen(
                    received_ns, "contradicted", Reason.STATUS_FOR_NO_FRAME, f"frame {number} {disposition.value}"
                )

    def lose(self) -> None:
        """Record the end of the stream: frames in flight get no answer."""
        for record in self._open.values():
            record.reason = Reason.STREAM_LOST
        self._open.clear()

    def close(self) -> None:
        """End the record: frames in flight stay unanswered, whatever arrives later."""
        self._open.clear()

    def happen(self, at_ns: int, kind: str, reason: str, text: str = "") -> None:
        """Record an event that does not concern a single frame."""
        self.happenings.append(Happening(at_ns, kind, reason, text))

    def _was_acted(self, number: int) -> bool:
        return 1 <= number <= len(self.frames) and self.frames[number - 1].fate is Fate.ACTED
