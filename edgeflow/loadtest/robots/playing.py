"""The chunks that a load robot plays, as a robot with the SDK would report them to the service."""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.client.timeline import PlayLog, Timeline
from edgeflow.rpc import control_pb2 as pb


@dataclass(frozen=True, slots=True)
class Seamed:
    """How a chunk followed the one before. continued: made to. late: it came later than it was made for."""

    continued: bool = False
    late: bool = False


class Playing:
    """The chunks of one stream: which one is played when, and the newest that arrived.

    A late chunk is not played while the one before has valid rows, and single actions are not played at all.
    """

    def __init__(self) -> None:
        self._plays = PlayLog()
        self._until_ns = 0
        self._arrived: pb.Arrived | None = None

    def heard(self, action: pb.Action, now_ns: int) -> Seamed:
        """An answer arrived, or with another command than ACT the end of what was played."""
        if action.command != pb.COMMAND_ACT:
            self._until_ns = now_ns
            self._plays.end(now_ns)
            return Seamed()
        age_ns = max(now_ns - action.stamp_ns, 0)
        self._arrived = pb.Arrived(seq=action.seq, age_ns=age_ns)
        if action.horizon <= 1:
            return Seamed()
        step_ns = round(action.step_ms * 1e6)
        late = action.continues > 0 and age_ns > action.conditioned_steps * step_ns
        if not late or now_ns >= self._until_ns:
            timeline = Timeline(action.stamp_ns, step_ns, action.horizon)
            limit_ns = action.max_age_ms * 1_000_000 or None
            self._until_ns = timeline.valid_until_ns(now_ns, action.valid_for_ms * 1_000_000, limit_ns)
            self._plays.begin(action.seq, timeline, now_ns, self._until_ns)
        return Seamed(continued=action.continues > 0, late=late)

    def report(self, frame: pb.Frame, *, arrivals: bool) -> None:
        """Fill in what a frame says of it. arrivals: the service takes Frame.arrived."""
        played = self._plays.at(frame.stamp_ns)
        if played is not None:
            frame.playing.CopyFrom(pb.Playing(seq=played[0], step=played[1]))
        if arrivals and self._arrived is not None:
            frame.arrived.CopyFrom(self._arrived)
