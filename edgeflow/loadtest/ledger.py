"""What one robot offered and what became of it. Every frame has exactly one fate."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from edgeflow.reasons import Reason
from edgeflow.types import Disposition, StageTimings

UNANSWERED = Reason.NO_ANSWER
DISCONNECTED = Reason.DISCONNECTED
STREAM_LOST = Reason.STREAM_LOST


_NOT_TOLD = StageTimings()


class Fate(str, Enum):
    """A disposition that the service told, or none."""

    ACTED = "acted"
    SUPERSEDED = "superseded"
    REJECTED = "rejected"
    DROPPED = "dropped"
    UNANSWERED = "unanswered"


@dataclass(slots=True)
class FrameRecord:
    """Times in nanoseconds on the client's monotonic clock, 0 = not yet or never.

    scheduled: when the frame was due, which is its stamp: a frame that leaves late is older. sent: when its write
    began. received: when its action, or another disposition, arrived. server, timings: as the service says.
    """

    number: int
    scheduled_ns: int
    sent_ns: int = 0
    received_ns: int = 0
    fate: Fate = Fate.UNANSWERED
    reason: str = UNANSWERED
    valid_for_ms: int = 0
    server_ns: int = 0
    timings: StageTimings = _NOT_TOLD

    @property
    def age_ns(self) -> int:
        return self.received_ns - self.scheduled_ns

    @property
    def start_ns(self) -> int:
        """Received by the service to its first pass started, and the way back: service less inference."""
        return self.server_ns - self.timings.inference_ns


@dataclass(frozen=True, slots=True)
class Happening:
    """What befell a robot; kind: opened, refused, lost, hold, stop, notice, contradicted."""

    at_ns: int
    kind: str
    reason: str
    text: str = ""


class Ledger:
    """Frames are numbered from 1 over all streams of a robot."""

    def __init__(self, robot: int) -> None:
        self.robot = robot
        self.frames: list[FrameRecord] = []
        self.happenings: list[Happening] = []
        self._open: dict[int, FrameRecord] = {}

    @property
    def under_way(self) -> int:
        """Frames whose fate may still be told."""
        return len(self._open)

    def offer(self, scheduled_ns: int, sent_ns: int) -> FrameRecord:
        """A frame leaves."""
        record = FrameRecord(len(self.frames) + 1, scheduled_ns, sent_ns)
        self.frames.append(record)
        self._open[record.number] = record
        return record

    def offer_in_vain(self, scheduled_ns: int) -> None:
        """A frame was due while there was no stream."""
        self.frames.append(FrameRecord(len(self.frames) + 1, scheduled_ns, reason=DISCONNECTED))

    def act(
        self, number: int, stamp_ns: int, received_ns: int, valid_for_ms: int, server_ns: int, timings: StageTimings
    ) -> bool:
        """An action came for a frame; False when no such frame waits for one."""
        record = self._open.get(number)
        if record is None or record.scheduled_ns != stamp_ns:
            self.happen(received_ns, "contradicted", Reason.ACTION_FOR_NO_FRAME, f"frame {number}")
            return False
        del self._open[number]
        record.fate, record.reason, record.received_ns = Fate.ACTED, "", received_ns
        record.valid_for_ms, record.server_ns, record.timings = valid_for_ms, server_ns, timings
        return True

    def dispose(self, first: int, last: int, disposition: Disposition, reason: str, received_ns: int) -> None:
        """The service says what became of frames; ACTED that follows its action is known already."""
        for number in range(first, max(first, last) + 1):
            record = self._open.pop(number, None)
            if record is not None:
                record.fate, record.reason, record.received_ns = Fate(disposition.value), reason, received_ns
            elif disposition is not Disposition.ACTED or not self._was_acted(number):
                self.happen(
                    received_ns, "contradicted", Reason.STATUS_FOR_NO_FRAME, f"frame {number} {disposition.value}"
                )

    def lose(self) -> None:
        """The stream ended: what was under way gets no answer."""
        for record in self._open.values():
            record.reason = STREAM_LOST
        self._open.clear()

    def close(self) -> None:
        """Nobody waits any more: what is under way stays unanswered, whatever is said from now on."""
        self._open.clear()

    def happen(self, at_ns: int, kind: str, reason: str, text: str = "") -> None:
        """Write down what is no frame."""
        self.happenings.append(Happening(at_ns, kind, reason, text))

    def _was_acted(self, number: int) -> bool:
        return 1 <= number <= len(self.frames) and self.frames[number - 1].fate is Fate.ACTED
