"""Injected time: code that needs the time takes a Clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock in integer nanoseconds."""

    def now_ns(self) -> int: ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()


class ManualClock:
    """A clock that moves only when advanced, for tests and virtual-time evaluation."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance_ns(self, delta_ns: int) -> None:
        """Move forward; going back is a programming error."""
        if delta_ns < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-delta_ns} ns")
        self._now_ns += delta_ns

    def advance_to_ns(self, instant_ns: int) -> None:
        """Move to an instant; a past instant leaves the clock unchanged."""
        self._now_ns = max(self._now_ns, instant_ns)
