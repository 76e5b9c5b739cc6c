"""What a session tells its robot; wire.py turns it into messages."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TypeAlias

from edgeflow.reasons import Reason
from edgeflow.types import Command, Disposition, StageTimings


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusEvent:
    """What became of a frame, or of the frames seq to last_seq when they were superseded one after another.

    field: what in the frame was refused, already named in the text.
    """

    seq: int
    disposition: Disposition
    code: str = ""
    reason: str = ""
    text: str = ""
    last_seq: int = 0
    field: str = ""

    @property
    def frames(self) -> int:
        return max(self.last_seq - self.seq, 0) + 1


@dataclass(frozen=True, slots=True)
class NoticeEvent:
    """A note about the whole session."""

    kind: str
    epoch: int
    code: str = ""
    text: str = ""
    deadline_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionEvent:
    """What the robot does now. seq 0 and no values for HOLD and STOP.

    server_ns: frame received to action handed out. age_ns: the same, plus how much longer than the quickest frame
    of the session this one took to reach us.
    """

    epoch: int
    command: Command
    reason: str
    valid_for_ms: int
    seq: int = 0
    stamp_ns: int = 0
    values: tuple[float, ...] = ()
    token_ids: tuple[int, ...] = ()
    timings: StageTimings = dataclasses.field(default_factory=StageTimings)
    server_ns: int = 0
    age_ns: int = 0


@dataclass(frozen=True, slots=True)
class End:
    """How a stream ends: a gRPC status name and a line for a person.

    reason: the last HOLD's or STOP's, and for metrics and logs. command: the last one.
    """

    code: str
    reason: Reason
    text: str = ""
    command: Command = Command.HOLD


Event: TypeAlias = StatusEvent | NoticeEvent | ActionEvent
