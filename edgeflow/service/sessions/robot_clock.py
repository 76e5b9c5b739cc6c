"""The robot's clock as its stamps show it, for spotting stamps in its future and for the transport delay of frames.

Pure integers; callers pass the time.
"""

from __future__ import annotations

TOLERANCE_NS = 1_000_000_000  # by which a stamp may be ahead of the quickest frame's
AGREEING = 3  # frames that must agree before a stamp is refused
MOST_REFUSED = 2  # in a row; the next one is believed
HALF_WINDOW_NS = 5_000_000_000
STEP_NS = 1_000_000_000  # by which one frame ages the window at most
SLOW_NS = 5_000_000_000  # behind half of real time, after which stamps that kept up before are not a clock
SLOW_FIRST_NS = 500_000_000  # the same for stamps that never kept up
SLOW_FRAMES = 3  # and at least so many
KEPT_UP_FRAMES = 8


class StampPace:
    """The pace of a robot's stamps. Constants, counters and slow simulators are not clocks: they show no delay.

    A stamp that stands still after it advanced shows an old picture, as a camera that hangs does: its delay counts.
    """

    def __init__(self) -> None:
        self.slow = False
        self._last: tuple[int, int] | None = None
        self._advanced = self._kept_up = False
        self._behind_ns = self._slow_frames = self._quick_frames = 0

    def observe(self, stamp_ns: int, received_ns: int) -> None:
        """Take an admitted frame's stamp."""
        if self._last is not None:
            self._step(stamp_ns - self._last[0], max(received_ns - self._last[1], 0))
        self._last = (stamp_ns, received_ns)

    def _step(self, went_ns: int, passed_ns: int) -> None:
        self._advanced = self._advanced or went_ns > 0
        if self._kept_up and not went_ns:
            return
        behind_ns = min(passed_ns, STEP_NS) - 2 * went_ns
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


class RobotClock:
    """An estimate of (our clock - the robot's): the smallest (received - stamp) of the last frames.

    Its window moves with the frames, not with silence, so frames that waited out a stall together do not look quick.
    """

    def __init__(self) -> None:
        self._offset_ns: int | None = None
        self._older_ns: int | None = None
        self._newer_ns: int | None = None
        self._aged_ns = self._received_ns = 0
        self._agreed = self._refused = 0
        self._pace = StampPace()

    @property
    def slow(self) -> bool:
        """True while the stamps do not advance, or at less than half of real time."""
        return self._pace.slow

    def admits(self, stamp_ns: int, received_ns: int) -> bool:
        """Take a frame's stamp into the estimate; False if it is to be refused as in the future.

        A slow first frame makes prompt ones look ahead, and so does a clock that jumped: two of them are refused where
        others agreed before, then the new clock counts.
        """
        seen_ns = received_ns - stamp_ns
        known_ns = self._offset_ns
        ahead = known_ns is not None and seen_ns < known_ns - TOLERANCE_NS
        if ahead and self._agreed >= AGREEING and self._refused < MOST_REFUSED:
            self._refused += 1
            return False
        self._refused = 0
        self._pace.observe(stamp_ns, received_ns)
        if known_ns is None or ahead:
            self._agreed = 1
        elif seen_ns <= known_ns + TOLERANCE_NS:
            self._agreed += 1
        self._keep(seen_ns, received_ns)
        return True

    def delay_ns(self, stamp_ns: int, received_ns: int) -> int:
        """The transport delay of a frame in excess of the quickest one's; 0 while the stamps are not a clock."""
        known_ns = self._offset_ns
        return 0 if known_ns is None or self.slow else max(received_ns - stamp_ns - known_ns, 0)

    def _keep(self, seen_ns: int, received_ns: int) -> None:
        """Two halves make a window that moves: the newer one counts from its first frame, the older one is complete."""
        if self._offset_ns is not None:
            self._aged_ns += min(max(received_ns - self._received_ns, 0), STEP_NS)
        self._received_ns = received_ns
        self._newer_ns = seen_ns if self._newer_ns is None else min(self._newer_ns, seen_ns)
        if self._aged_ns >= HALF_WINDOW_NS:
            self._older_ns, self._newer_ns, self._aged_ns = self._newer_ns, None, 0
        halves = (half for half in (self._older_ns, self._newer_ns) if half is not None)
        self._offset_ns = min(halves)
