"""Detection of a hung worker by its silence."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

SLOW_PASSES = 10  # permitted silence, in passes of the slowest hundredth
KEPT_PASSES = 1000


class Progress:
    """The silence of a worker, counted only while control listens: a suspended control blames nobody."""

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
        """Treat passes of this length as usual, however long ago the last one was."""
        self._least_ns = max(self._least_ns, SLOW_PASSES * pass_ns)

    def heard(self, passes_ns: Iterable[int] = ()) -> None:
        """Note a sign of life, and how long its passes took."""
        self._silent_ns = 0
        self._passes_ns.extend(passes_ns)

    def listened(self, elapsed_ns: int) -> bool:
        """Add a time without messages; True if the silence is too long."""
        self._silent_ns += elapsed_ns
        return self._silent_ns > self.deadline_ns
