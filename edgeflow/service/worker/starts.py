"""How long the start of a worker may take, judged by how long earlier ones took."""

from __future__ import annotations

TIMES = 4  # what the slowest earlier start took
LEAST_S = 5.0


class StartLimits:
    """The time limits of starts, cold ones and those of a worker in reserve. most_s: the limit of the first start."""

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
        """Note how long a start took."""
        self._slowest_s[reserve] = max(seconds, self._slowest_s.get(reserve, 0.0))

    def exceeded(self, *, reserve: bool) -> None:
        """Allow the next start twice the limit that this one exceeded: the machine may have become slower."""
        self.took(2 * self.limit_s(reserve=reserve) / TIMES, reserve=reserve)
