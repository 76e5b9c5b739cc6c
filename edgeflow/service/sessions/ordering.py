"""The order of frames: sequence numbers and stamps, and the number of refusals.

Pure integers; callers pass the time.
"""

from __future__ import annotations

from collections import deque

from edgeflow.service.sessions.robot_clock import RobotClock
from edgeflow_client.errors import OutOfRange
from edgeflow_client.reasons import Reason

SEQ_WINDOW = 10_000  # a larger gap is a broken counter, not lost frames
REFUSAL_WINDOW_NS = 10_000_000_000


class FrameOrder:
    """Checks that sequence numbers increase, and that stamps neither go back nor run ahead of the robot's own clock.

    The robot's clock is only known through its stamps (robot_clock.py). A stamp that the next three frames contradict
    was wrong, and the order of stamps begins anew with the third of them.
    """

    def __init__(self) -> None:
        self._last_seq = 0
        self._last_stamp_ns = 0
        self._clock = RobotClock()

    def admit(self, seq: int, stamp_ns: int, now_ns: int) -> None:
        """Accept the frame into the order (even if its contents are refused later), or raise OutOfRange."""
        if seq <= self._last_seq:
            reason = Reason.SEQ_DUPLICATE if seq == self._last_seq else Reason.SEQ_OLD
            raise OutOfRange(
                f"{seq} came after {self._last_seq}; sequence numbers must increase", field="frame.seq", reason=reason
            )
        if seq > self._last_seq + SEQ_WINDOW:
            raise OutOfRange(
                f"{seq} is more than {SEQ_WINDOW} ahead of {self._last_seq}", field="frame.seq", reason=Reason.SEQ_GAP
            )
        if self._clock.corrected(stamp_ns, now_ns):
            self._last_stamp_ns = 0
        if stamp_ns < self._last_stamp_ns:
            raise OutOfRange("is earlier than the previous frame's", field="frame.stamp_ns", reason=Reason.STAMP_OLD)
        if not self._clock.admits(stamp_ns, now_ns):
            raise OutOfRange(
                "lies in the future of the robot's own clock", field="frame.stamp_ns", reason=Reason.STAMP_FUTURE
            )
        self._last_seq = seq
        self._last_stamp_ns = stamp_ns

    def begin_stamps(self) -> None:
        """Let the stamps begin anew, with an episode. What is known of the robot's clock remains: a frame that is late
        shows its age.
        """
        self._last_stamp_ns = 0
        self._clock.forget_stamps()

    @property
    def stamps_slow(self) -> bool:
        """True while the stamps do not advance, or at less than half of real time."""
        return self._clock.slow

    def delay_ns(self, stamp_ns: int, received_ns: int) -> int:
        """The transport delay of a frame in excess of the session's quickest one."""
        return self._clock.delay_ns(stamp_ns, received_ns)


class RollingCount:
    """A count of events within a sliding window."""

    def __init__(self, limit: int, window_ns: int = REFUSAL_WINDOW_NS) -> None:
        self._limit = limit
        self._window_ns = window_ns
        self._times_ns: deque[int] = deque()

    def exceeded(self, now_ns: int) -> bool:
        """Count an event; True if there were more than the limit within the window."""
        self._times_ns.append(now_ns)
        while self._times_ns[0] <= now_ns - self._window_ns:
            self._times_ns.popleft()
        return len(self._times_ns) > self._limit
