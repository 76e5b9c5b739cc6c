"""When chat may run beside control: integers only, time is an argument.

Robots send at their declared period, so the next frame of each session is expected; a step of chat starts only when
it will be over by then. A session that is late keeps the device free for one period more, then counts as silent. So
that chat moves on beside robots that leave no gap, one step is granted whenever none ran for `patience_ns`.
"""

from __future__ import annotations

UNBOUNDED = 1 << 62


class Gaps:
    """Knows when frames came; `room_ns` says how long a step of chat may last now."""

    def __init__(self, patience_ns: int) -> None:
        self._patience_ns = patience_ns
        self._period_ns: dict[int, int] = {}
        self._arrived_ns: dict[int, int] = {}
        self._served_ns = 0

    def open(self, session: int, period_ns: int) -> None:
        self._period_ns[session] = period_ns

    def close(self, session: int) -> None:
        self._period_ns.pop(session, None)
        self._arrived_ns.pop(session, None)

    def arrived(self, session: int, now_ns: int) -> None:
        """A frame came."""
        if session in self._period_ns:
            self._arrived_ns[session] = now_ns

    def served(self, now_ns: int) -> None:
        """A step of chat ran, or a request begins to wait: patience counts from here."""
        self._served_ns = now_ns

    def must_run(self, now_ns: int) -> bool:
        """Whether chat has waited for so long that one step goes first."""
        return now_ns - self._served_ns >= self._patience_ns

    def room_ns(self, now_ns: int) -> int:
        """Until the next frame is expected; 0 when one is due."""
        return min((self._until(session, now_ns) for session in self._arrived_ns), default=UNBOUNDED)

    def wake_at_ns(self) -> int:
        """When a step may become possible though no frame comes."""
        silent = (self._arrived_ns[session] + 2 * self._period_ns[session] for session in self._arrived_ns)
        return min(self._served_ns + self._patience_ns, min(silent, default=UNBOUNDED))

    def _until(self, session: int, now_ns: int) -> int:
        period_ns = self._period_ns[session]
        elapsed_ns = now_ns - self._arrived_ns[session]
        if elapsed_ns >= 2 * period_ns:
            return UNBOUNDED
        return max(period_ns - elapsed_ns, 0)
