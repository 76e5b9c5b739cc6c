"""When chat may run beside control: integers only, time is an argument.

Robots send at their declared period, so the next frame of each session is expected; a step of chat starts only when
it will be over by then, also if it is one of the slowest. A session that is late keeps the device free for one period
more, then counts as silent. So that chat moves on beside robots that leave no gap, one step is granted whenever none
ran for `patience_ns`.
"""

from __future__ import annotations

from collections import deque

UNBOUNDED = 1 << 62
KEPT_STEPS = 100
LATE_SHARE = 8  # of a late frame's lateness, one part moves the expectation: transport is late now and then


class Gaps:
    """Knows when frames came and what steps took; `room_ns` says what a step of chat may cost now."""

    def __init__(self, patience_ns: int) -> None:
        self._patience_ns = patience_ns
        self._period_ns: dict[int, int] = {}
        self._expected_ns: dict[int, int] = {}
        self._percent: deque[int] = deque(maxlen=KEPT_STEPS)
        self._served_ns = 0

    def open(self, session: int, period_ns: int) -> None:
        self._period_ns[session] = period_ns

    def close(self, session: int) -> None:
        self._period_ns.pop(session, None)
        self._expected_ns.pop(session, None)

    def arrived(self, session: int, now_ns: int) -> None:
        """A frame came to the service. An early one moves the beat at once, a late one a little; one of another beat
        begins a new one.
        """
        period_ns = self._period_ns.get(session)
        if period_ns is None:
            return
        late_ns = now_ns - self._expected_ns.get(session, now_ns)
        if 0 < late_ns < period_ns // 2:
            now_ns -= late_ns - late_ns // LATE_SHARE
        self._expected_ns[session] = now_ns + period_ns

    def begin(self, now_ns: int) -> None:
        """A request begins to wait: patience counts from here."""
        self._served_ns = now_ns

    def served(self, now_ns: int, expected_ns: int, took_ns: int) -> None:
        """A step of chat ran. expected_ns: by the cost model; 0 when nothing was computed."""
        self._served_ns = now_ns
        if expected_ns > 0:
            self._percent.append(max(100 * took_ns // expected_ns, 100))

    def must_run(self, now_ns: int) -> bool:
        """Whether chat has waited for so long that one step goes first."""
        return now_ns - self._served_ns >= self._patience_ns

    def room_ns(self, now_ns: int, pass_at_ns: int | None = None) -> int:
        """What a step may cost, by the cost model, to be over when the next frame is expected; 0 when one is due.

        pass_at_ns: when there will be a pass though no frame comes.
        """
        until_ns = min((self._until(session, now_ns) for session in self._expected_ns), default=UNBOUNDED)
        if pass_at_ns is not None:
            until_ns = min(until_ns, max(pass_at_ns - now_ns, 0))
        return 100 * until_ns // self._slowest_percent

    def wake_at_ns(self) -> int:
        """When a step may become possible though no frame comes."""
        silent = (self._silent_ns(session) for session in self._expected_ns)
        return min(self._served_ns + self._patience_ns, min(silent, default=UNBOUNDED))

    @property
    def _slowest_percent(self) -> int:
        """Of the cost model's time: the slowest of the last steps but one, which may have been an accident."""
        slowest = sorted(self._percent)[-2:]
        return slowest[0] if len(slowest) == 2 else 200

    def _until(self, session: int, now_ns: int) -> int:
        if now_ns >= self._silent_ns(session):
            return UNBOUNDED
        return max(self._expected_ns[session] - now_ns, 0)

    def _silent_ns(self, session: int) -> int:
        return self._expected_ns[session] + self._period_ns[session]
