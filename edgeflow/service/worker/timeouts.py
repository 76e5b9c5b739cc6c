"""Time limits for the silence of a worker or a child, and for its start."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

SLOW_PASSES = 10  # permitted silence, as a multiple of the 99th percentile of pass times
KEPT_PASSES = 1000
TIMES = 4  # the time of the slowest earlier start
LEAST_S = 5.0


class WorkerSilence:
    """The silence of a worker, counted only while control listens: a suspended control must not blame the worker."""

    def __init__(self, least_ns: int) -> None:
        self._least_ns = least_ns
        self._silent_ns = 0
        self._passes_ns: deque[int] = deque(maxlen=KEPT_PASSES)

    @property
    def deadline_ns(self) -> int:
        """The longest permitted silence."""
        if not self._passes_ns:
            return self._least_ns
        slow_ns = sorted(self._passes_ns)[len(self._passes_ns) * 99 // 100]
        return max(self._least_ns, SLOW_PASSES * slow_ns)

    def expect(self, pass_ns: int) -> None:
        """Permit the silence of passes of this length, even if the last one was long ago."""
        self._least_ns = max(self._least_ns, SLOW_PASSES * pass_ns)

    def heard(self, passes_ns: Iterable[int] = ()) -> None:
        """Record a sign of life, and the times of the passes since the last one."""
        self._silent_ns = 0
        self._passes_ns.extend(passes_ns)

    def listened(self, elapsed_ns: int) -> bool:
        """Add a time without messages; True if the silence is too long."""
        self._silent_ns += elapsed_ns
        return self._silent_ns > self.deadline_ns


class StartLimits:
    """The time limits of cold starts and of starts from the reserve. most_s: the limit of the first start."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._slowest_s: dict[bool, float] = {}

    def limit_s(self, *, reserve: bool) -> float:
        """The limit of the next start of this kind."""
        if not self._slowest_s:
            return self._most_s
        slowest_s = self._slowest_s.get(reserve, max(self._slowest_s.values()))
        return min(max(LEAST_S, TIMES * slowest_s), self._most_s)

    def took(self, seconds: float, *, reserve: bool) -> None:
        """Record the time of a start."""
        self._slowest_s[reserve] = max(seconds, self._slowest_s.get(reserve, 0.0))

    def exceeded(self, *, reserve: bool) -> None:
        """Allow the next start twice the limit that was exceeded: the machine may have become slower."""
        self.took(2 * self.limit_s(reserve=reserve) / TIMES, reserve=reserve)
