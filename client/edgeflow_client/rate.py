"""A rate keeper for a robot's loop. Sleeping for a period instead would add the time of the work to every step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from edgeflow_client.clock import Clock, MonotonicClock
from edgeflow_client.errors import InvalidArgument

MAX_PERIOD_S = 3600.0


class RateKeeper:
    """Starts the steps of a loop at moments one period apart.

        rate = RateKeeper(0.05)
        while working():
            rate.wait()
            ...

    The moments count from the first `wait`, so that nothing adds up. A step that is not over when the next one is due
    misses that moment. The next step then begins at once, and the one after it at the first moment that is at least
    half a period away: missed steps are not made up for. One thread calls it.

    period_s: time between two moments. clock, sleep: for tests.
    """

    def __init__(
        self, period_s: float, *, clock: Clock | None = None, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        if not isinstance(period_s, int | float) or not 0.0 < period_s <= MAX_PERIOD_S:
            raise InvalidArgument(f"must be above 0 and at most {MAX_PERIOD_S:g} s, got {period_s!r}", field="period_s")
        self.missed = 0
        """Moments missed so far."""
        self._period_s = period_s
        self._clock: Clock = clock or MonotonicClock()
        self._sleep = sleep
        self._start_ns: int | None = None
        self._next = 0  # the next moment, in periods since the start

    def wait(self) -> int:
        """Wait for the next moment; the first call returns at once. Returns the moments missed since the last call."""
        now_ns = self._clock.now_ns()
        if self._start_ns is None:
            self._start_ns = now_ns
        late_ns = now_ns - self._moment_ns(self._next)
        if late_ns <= 0:
            while (left_ns := self._moment_ns(self._next) - self._clock.now_ns()) > 0:
                self._sleep(left_ns / 1e9)
            self._next += 1
            return 0
        late = late_ns / 1e9 / self._period_s  # in periods
        missed = math.floor(late) + 1
        self.missed += missed
        self._next += math.ceil(late + 0.5)
        return missed

    def _moment_ns(self, count: int) -> int:
        return (self._start_ns or 0) + round(count * self._period_s * 1e9)
