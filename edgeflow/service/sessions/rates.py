"""Token buckets of a session. Pure integers; callers pass the time."""

from __future__ import annotations


class TokenBucket:
    """A bucket that earns a token per period and holds at most `burst`; it starts full."""

    def __init__(self, period_ns: int, burst: int, now_ns: int) -> None:
        self._period_ns = period_ns
        self._most_ns = burst * period_ns
        self._earned_ns = self._most_ns
        self._then_ns = now_ns

    def take(self, now_ns: int) -> bool:
        """Take a token; False if there is none."""
        self._earn(now_ns)
        if self._earned_ns < self._period_ns:
            return False
        self._earned_ns -= self._period_ns
        return True

    def ready_at_ns(self, now_ns: int) -> int:
        """When the next token can be taken; `now_ns` or earlier if there is one."""
        self._earn(now_ns)
        return now_ns + self._period_ns - self._earned_ns

    def _earn(self, now_ns: int) -> None:
        self._earned_ns = min(self._earned_ns + max(now_ns - self._then_ns, 0), self._most_ns)
        self._then_ns = now_ns
