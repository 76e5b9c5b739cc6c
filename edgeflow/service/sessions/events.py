"""Events of a session for its robot; grpc/stream.py converts them to messages."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TypeAlias

from edgeflow.contract import Chunk
from edgeflow_client.errors import RequestError
from edgeflow_client.reasons import Reason
from edgeflow_client.trajectory import ChunkReport
from edgeflow_client.types import Command, Disposition, StageTimings


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusEvent:
    """The outcome of a frame, or of the consecutively superseded frames seq to last_seq.

    field: the refused field, which the text also names.
    """

    seq: int
    disposition: Disposition
    code: str = ""
    reason: str = ""
    text: str = ""
    last_seq: int = 0
    field: str = ""

    @classmethod
    def refused(cls, seq: int, error: RequestError) -> StatusEvent:
        """The refusal of a frame."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionEvent:
    """A command for the robot; HOLD and STOP have seq 0 and no chunk.

    server_ns: from receiving the frame to handing out the action. age_ns: the same plus the frame's transport delay in
    excess of the session's quickest frame. max_age_ms: the action must not be executed once its frame is older.
    settled: leading tokens that are settled. tolerance_bins, max_passes: how its drafts were verified; max_passes is 0
    where the frame had none. report: how its chunk came about.
    """

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
    age_ns: int = 0
    max_age_ms: int = 0
    settled: int = 0
    tolerance_bins: int = 0
    max_passes: int = 0
    report: ChunkReport = dataclasses.field(default_factory=ChunkReport)

    @property
    def values(self) -> tuple[float, ...]:
        """The numbers of the chunk, row by row; none for HOLD and STOP."""
        return self.chunk.values if self.chunk is not None else ()

    @property
    def unsettled(self) -> int:
        """Tokens of the action that are not settled."""
        return len(self.token_ids) - self.settled


@dataclass(frozen=True, slots=True)
class End:
    """How a stream ends. code: a gRPC status name. text: one line for people.

    reason: the last HOLD's or STOP's, and for metrics and logs. command: the last one.
    """

    code: str
    reason: Reason
    text: str = ""
    command: Command = Command.HOLD


Event: TypeAlias = StatusEvent | NoticeEvent | ActionEvent
