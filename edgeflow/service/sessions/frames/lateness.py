"""Answers that are too old to be handed out."""

from __future__ import annotations

from edgeflow.service.sessions.frames.tracks import Ready, Track
from edgeflow.service.sessions.gate import AgeLimit
from edgeflow.service.sessions.ordering import FrameOrder

LATE_IN_A_ROW = 3


class Lateness:
    """The age of answers, and how many frames in a row were too old to be answered."""

    def __init__(self, limit: AgeLimit, order: FrameOrder) -> None:
        self._limit = limit
        self._order = order
        self._in_a_row = 0

    def delay_ns(self, track: Track) -> int:
        """The transport delay of a frame in excess of the session's quickest one."""
        return self._order.delay_ns(track.frame.stamp_ns, track.received_ns)

    def is_late(self, ready: Ready, now_ns: int) -> bool:
        """True if the answer is beyond the limit."""
        return ready.late_ns(now_ns - ready.track.received_ns + self.delay_ns(ready.track)) > self._limit.ns

    def count(self) -> bool:
        """Count a frame that was too old while a newer one is in flight; True after LATE_IN_A_ROW of them."""
        self._in_a_row += 1
        return self._in_a_row >= LATE_IN_A_ROW

    def in_time(self) -> None:
        """An answer is handed out."""
        self._in_a_row = 0
