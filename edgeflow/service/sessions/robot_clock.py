"""The order of frames, and an estimate of the robot's clock from its stamps.

The estimate shows which stamps lie in the future, and the transport delay of frames. Pure integers; callers pass the
time.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from edgeflow_client.errors import OutOfRange
from edgeflow_client.reasons import Reason

TOLERANCE_NS = 1_000_000_000  # by which a stamp may be ahead of the quickest frame's
AGREEING = 3  # frames that must agree before a stamp is rejected
MOST_REJECTED = 2  # consecutive stamps; the next one is believed
HALF_WINDOW_NS = 5_000_000_000
STEP_NS = 1_000_000_000  # the most by which one frame ages the window
SLOW_NS = 5_000_000_000  # behind half of real time: stamps that kept up before are then not a clock
SLOW_FIRST_NS = 500_000_000  # the same for stamps that never kept up
SLOW_FRAMES = 3  # the least number of such frames
KEPT_UP_FRAMES = 8
AGREE_NS = 20_000_000  # the most by which two frames of the same clock differ
CONTRADICTING = 3  # consecutive frames that correct the estimate
MOST_STAMPS = 1024  # that are recognised when they are sent again
SEQ_WINDOW = 10_000  # a larger gap is a broken counter, not lost frames


class StampPace:
    """The pace of a robot's stamps. Constants, counters and slow simulators are not clocks and show no delay.

    A stamp that stands still after it advanced belongs to an old image, as from a camera that hangs: its delay counts.
    """

    def __init__(self) -> None:
        self.slow = False
        self._last: tuple[int, int] | None = None
        self._advanced = self._kept_up = False
        self._behind_ns = self._slow_frames = self._quick_frames = 0

    def observe(self, stamp_ns: int, received_ns: int) -> None:
        """Add the stamp of an admitted frame. A stamp that goes back says nothing about the pace."""
        if self._last is not None and stamp_ns >= self._last[0]:
            self._step(stamp_ns - self._last[0], max(received_ns - self._last[1], 0))
        self._last = (stamp_ns, received_ns)

    def _step(self, went_ns: int, passed_ns: int) -> None:
        self._advanced = self._advanced or went_ns > 0
        if self._kept_up and not went_ns:
            return
        behind_ns = min(passed_ns, STEP_NS) - 2 * went_ns  # a clock may run at half of real time
        self._behind_ns = min(max(self._behind_ns + behind_ns, 0), SLOW_NS)
        self._slow_frames += behind_ns > 0
        self._quick_frames += behind_ns <= 0
        self._kept_up = self._kept_up or (self._quick_frames >= KEPT_UP_FRAMES and not self._behind_ns)
        self.slow = not self._advanced or self._is_behind or (self.slow and self._behind_ns > 0)

    @property
    def _is_behind(self) -> bool:
        if self._kept_up:
            return self._behind_ns >= SLOW_NS
        return self._slow_frames >= SLOW_FRAMES and self._behind_ns >= SLOW_FIRST_NS


class Contradiction:
    """Consecutive frames that contradict the estimated clock.

    They count once CONTRADICTING of them advanced as real time did: frames that waited out a stall arrive faster than
    they were captured, which is not evidence of another clock.
    """

    def __init__(self) -> None:
        self._frames: deque[tuple[int, int]] = deque(maxlen=CONTRADICTING)

    def __bool__(self) -> bool:
        return bool(self._frames)

    @property
    def offsets_ns(self) -> list[int]:
        """The offsets (our clock - the robot's) of these frames."""
        return [received_ns - stamp_ns for stamp_ns, received_ns in self._frames]

    def add(self, stamp_ns: int, received_ns: int) -> bool:
        """Add the next frame; True if the last ones agree with each other."""
        self._frames.append((stamp_ns, received_ns))
        stamps = [stamp for stamp, _ in self._frames]
        if len(stamps) < CONTRADICTING or any(later <= earlier for earlier, later in pairwise(stamps)):
            return False
        went_ns, passed_ns = stamps[-1] - stamps[0], received_ns - self._frames[0][1]
        return 2 * abs(passed_ns - went_ns) <= went_ns

    def clear(self) -> None:
        """Forget them: a frame agreed with the estimate."""
        self._frames.clear()


class QuickestFrames:
    """The smallest (received - stamp) of the last frames.

    Two halves make a moving window: the newer one counts from its first frame, the older one is complete. It moves
    with the frames, not with silence, so that frames that waited out a stall together do not look quick.
    """

    def __init__(self) -> None:
        self._older_ns: int | None = None
        self._newer_ns: int | None = None
        self._aged_ns = self._received_ns = 0

    @property
    def offset_ns(self) -> int | None:
        """The smallest offset; None without frames."""
        return min((half for half in (self._older_ns, self._newer_ns) if half is not None), default=None)

    def take(self, seen_ns: int, received_ns: int) -> bool:
        """Add a frame; True if it completes half a window."""
        if self.offset_ns is not None:
            self._aged_ns += min(max(received_ns - self._received_ns, 0), STEP_NS)
        self._received_ns = received_ns
        self._newer_ns = seen_ns if self._newer_ns is None else min(self._newer_ns, seen_ns)
        if self._aged_ns < HALF_WINDOW_NS:
            return False
        self._older_ns, self._newer_ns, self._aged_ns = self._newer_ns, None, 0
        return True


class RobotClock:
    """An estimate of (our clock - the robot's): the smallest (received - stamp) of the last frames.

    A single frame with a smaller offset is believed at once, but it is on trial: three frames that contradict it end
    the trial. An offset that several frames showed is contradicted only by a clock that was set back: its stamps go
    back, unlike those of late frames, and they are new, unlike those of frames that are sent again. stamps: the recent
    stamps, cleared with each episode, because a simulator's time may begin anew.
    """

    def __init__(self) -> None:
        self._quickest = QuickestFrames()
        self._trial: tuple[int, int] | None = None  # offset and stamp of the frame on trial
        self._newest_ns = 0  # of all stamps but the one on trial
        self.stamps: deque[int] = deque(maxlen=MOST_STAMPS)
        self._contradiction = Contradiction()
        self._agreed = self._rejected = 0
        self._pace = StampPace()

    @property
    def slow(self) -> bool:
        """True while the stamps stand still, or advance at less than half of real time."""
        return self._pace.slow

    def corrected(self, stamp_ns: int, received_ns: int) -> bool:
        """Compare a frame with the estimate, before `admits`; True if it and the frames before it disprove it."""
        known_ns = self._offset_ns
        if known_ns is None or received_ns - stamp_ns <= known_ns + AGREE_NS:
            self._contradiction.clear()
            return False
        back = stamp_ns < self._newest_ns
        if back and stamp_ns in self.stamps:
            return False
        if not (back or self._trial or self._contradiction):
            return False
        if not self._contradiction.add(stamp_ns, received_ns):
            return False
        self._believe_contradiction(received_ns)
        return True

    def admits(self, stamp_ns: int, received_ns: int) -> bool:
        """Add a frame's stamp to the estimate; False if it must be rejected because it lies in the future.

        After a slow first frame, prompt frames seem to be ahead, and so they do after a clock jumped. Two of them are
        rejected if others agreed before; then the new clock counts.
        """
        seen_ns = received_ns - stamp_ns
        known_ns = self._offset_ns
        ahead = known_ns is not None and seen_ns < known_ns - TOLERANCE_NS
        if ahead and self._agreed >= AGREEING and self._rejected < MOST_REJECTED:
            self._rejected += 1
            return False
        self._rejected = 0
        self._pace.observe(stamp_ns, received_ns)
        if known_ns is None or ahead:
            self._agreed = 1
        elif seen_ns <= known_ns + TOLERANCE_NS:
            self._agreed += 1
        self.stamps.append(stamp_ns)
        if known_ns is None or seen_ns < known_ns - AGREE_NS:
            self._trial = (seen_ns, stamp_ns)
        else:
            self._keep(stamp_ns, received_ns)
        return True

    def delay_ns(self, stamp_ns: int, received_ns: int) -> int:
        """The transport delay of a frame in excess of the quickest frame's; 0 while the stamps are not a clock."""
        known_ns = self._offset_ns
        return 0 if known_ns is None or self.slow else max(received_ns - stamp_ns - known_ns, 0)

    @property
    def _offset_ns(self) -> int | None:
        return self._quickest.offset_ns if self._trial is None else self._trial[0]

    def _keep(self, stamp_ns: int, received_ns: int) -> None:
        """Add a frame to the window; one that agrees with the frame on trial ends the trial."""
        seen_ns = received_ns - stamp_ns
        if self._trial is not None and seen_ns <= self._trial[0] + AGREE_NS:
            self._newest_ns = max(self._newest_ns, self._trial[1])
            seen_ns = min(seen_ns, self._trial[0])
            self._trial = None
        self._newest_ns = max(self._newest_ns, stamp_ns)
        if self._quickest.take(seen_ns, received_ns) and self._trial is not None:
            self._trial = None
            self._contradiction.clear()

    def _believe_contradiction(self, received_ns: int) -> None:
        """Forget the frame on trial or, if there is none, the whole window."""
        if self._trial is None:
            self._quickest, self._newest_ns = QuickestFrames(), 0
        for seen_ns in self._contradiction.offsets_ns:
            self._quickest.take(seen_ns, received_ns)
        self._trial = None
        self._contradiction.clear()
        self._agreed, self._rejected = AGREEING, 0


class FrameOrder:
    """Checks that sequence numbers increase, and that stamps neither go back nor run ahead of the robot's own clock.

    The robot's clock is known only through its stamps (RobotClock). If the next three frames contradict a stamp, it was
    wrong, and the order of stamps begins anew with the third of them.
    """

    def __init__(self) -> None:
        self._last_seq = 0
        self._last_stamp_ns = 0
        self.clock = RobotClock()

    def admit(self, seq: int, stamp_ns: int, now_ns: int) -> None:
        """Accept the frame into the order (even if its contents are rejected later), or raise OutOfRange."""
        if seq <= self._last_seq:
            reason = Reason.SEQ_DUPLICATE if seq == self._last_seq else Reason.SEQ_OLD
            raise OutOfRange(
                f"{seq} came after {self._last_seq}; sequence numbers must increase", field="frame.seq", reason=reason
            )
        if seq > self._last_seq + SEQ_WINDOW:
            raise OutOfRange(
                f"{seq} is more than {SEQ_WINDOW} ahead of {self._last_seq}", field="frame.seq", reason=Reason.SEQ_GAP
            )
        if self.clock.corrected(stamp_ns, now_ns):
            self._last_stamp_ns = 0
        if stamp_ns < self._last_stamp_ns:
            raise OutOfRange("is earlier than the previous frame's", field="frame.stamp_ns", reason=Reason.STAMP_OLD)
        if not self.clock.admits(stamp_ns, now_ns):
            raise OutOfRange(
                "lies in the future of the robot's own clock", field="frame.stamp_ns", reason=Reason.STAMP_FUTURE
            )
        self._last_seq = seq
        self._last_stamp_ns = stamp_ns

    def begin_stamps(self) -> None:
        """Let the stamps begin anew with an episode. The estimate remains, so that a late frame still shows its age."""
        self._last_stamp_ns = 0
        self.clock.stamps.clear()
