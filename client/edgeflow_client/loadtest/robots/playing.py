"""The chunks that a load robot executes, reported to the service like by a robot with the SDK."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgeflow_client.connection.wire import rate_of
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.timeline import PlayLog, Timeline, arrival_start_ns
from edgeflow_client.trajectory import ChunkReport
from edgeflow_client.types import UNKNOWN_STEP_NS


@dataclass(frozen=True, slots=True)
class Seamed:
    """How a chunk followed the one before."""

    continued: bool = False
    """It continues the chunk in execution."""
    late: bool = False
    """It did not fit the chunk in execution on arrival."""
    executed: Timeline | None = field(default=None, compare=False)
    """The moments of its rows, if it is executed from now on."""


@dataclass(frozen=True, slots=True)
class _ExecutedChunk:
    """The chunk being executed, in nanoseconds on the robot's clock."""

    seq: int
    begun: int
    """The frame whose chunk began the motion."""
    rows_until_ns: int
    """The time from which none of its rows is due."""
    until_ns: int
    """The end of its validity."""


class ChunkPlayer:
    """The chunks of one stream: which one is executed when, and the newest that arrived.

    A chunk that does not fit is executed only once no row of the one before is due; the SDK would keep one that comes
    earlier in reserve. While the robot rests none that continues another is executed.

    motion_ns: time of a row's motion (ActionSchema.motion_ns).
    """

    def __init__(self, motion_ns: int = UNKNOWN_STEP_NS) -> None:
        self._motion_ns = motion_ns
        self.rests_from_ns = 0
        """When all rows are executed, after which the next frame is answered; 0 = it may be taken at any time."""
        self._plays = PlayLog()
        self._played: _ExecutedChunk | None = None
        self._arrived: pb.Arrived | None = None

    def heard(self, action: pb.Action, now_ns: int) -> Seamed:
        """An answer arrived; HOLD and STOP end the chunk in execution."""
        if action.command != pb.COMMAND_ACT:
            self._played = None
            self._plays.end(now_ns)
            return Seamed()
        age_ns = max(now_ns - action.stamp_ns, 0)
        self.rests_from_ns = now_ns + action.rows * (_step_ns(action) or self._motion_ns) if action.rows else 0
        self._arrived = pb.Arrived(seq=action.seq, age_ns=age_ns)
        if action.horizon <= 1:
            until_ns = now_ns + action.valid_for_ms * 1_000_000
            single = Timeline(now_ns)
            self._plays.begin(action.seq, single, now_ns, until_ns, now_ns + self._motion_ns)
            return Seamed(executed=single)
        played = self._played if self._played is not None and now_ns < self._played.until_ns else None
        report = ChunkReport(continues=action.continues, conditioned_steps=action.conditioned_steps)
        apart = played is None or report.continues != played.seq
        late = report.continues > 0 and (apart or report.is_late(age_ns, _step_ns(action)))
        if action.from_arrival and played is not None and now_ns < played.rows_until_ns:
            return Seamed()  # it begins at rest, and the robot moves
        waits = late and (played is None or report.continues < played.begun or now_ns < played.rows_until_ns)
        timeline = None if waits else self._play(action, now_ns, played.begun if played else action.seq)
        return Seamed(continued=report.continues > 0, late=late, executed=timeline)

    def _play(self, action: pb.Action, now_ns: int, begun: int) -> Timeline:
        start_ns, step_ns = action.stamp_ns, _step_ns(action)
        if action.from_arrival:
            start_ns = arrival_start_ns(start_ns, now_ns, step_ns)
        timeline = Timeline(start_ns, step_ns, action.rows or action.horizon)
        limit_ns = action.max_age_ms * 1_000_000 or None
        until_ns = timeline.valid_until_ns(now_ns, action.valid_for_ms * 1_000_000, limit_ns)
        rows_until_ns = min(timeline.over_ns, until_ns)
        self._played = _ExecutedChunk(action.seq, begun, rows_until_ns, until_ns)
        self._plays.begin(action.seq, timeline, now_ns, until_ns, rows_until_ns)
        return timeline

    def report(self, frame: pb.Frame) -> None:
        """Set the fields of a frame that report chunks."""
        played = self._plays.at(frame.stamp_ns)
        if played is not None:
            frame.playing.CopyFrom(pb.Playing(seq=played.seq, step=played.step, start_ns=played.start_ns))
        frame.resting = self._plays.rests_at(frame.stamp_ns)
        if self._arrived is not None:
            frame.arrived.CopyFrom(self._arrived)


def _step_ns(action: pb.Action) -> int:
    return round(action.step_ms * 1e6 / rate_of(action))
