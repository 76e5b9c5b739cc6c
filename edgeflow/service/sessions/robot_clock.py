"""The robot's clock as its stamps show it, for spotting stamps in its future and for the transport delay of frames.

Pure integers; callers pass the time.
"""

from __future__ import annotations

TOLERANCE_NS = 1_000_000_000  # by which a stamp may be ahead of the quickest frame's
AGREEING = 3  # frames that must agree before a stamp is refused
MOST_REFUSED = 2  # in a row; the next one is believed
HALF_WINDOW_NS = 5_000_000_000
STEP_NS = 1_000_000_000  # by which one frame ages the window at most


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
        if known_ns is None or ahead:
            self._agreed = 1
        elif seen_ns <= known_ns + TOLERANCE_NS:
            self._agreed += 1
        self._keep(seen_ns, received_ns)
        return True

    def delay_ns(self, stamp_ns: int, received_ns: int) -> int:
        """The transport delay of a frame in excess of the quickest one's."""
        known_ns = self._offset_ns
        return 0 if known_ns is None else max(received_ns - stamp_ns - known_ns, 0)

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
