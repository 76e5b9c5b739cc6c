"""How long to wait before the next attempt to connect."""

from __future__ import annotations

from random import Random

SHORTEST_S = 0.5  # at most two attempts a second
LONGEST_S = 8.0


class Backoff:
    """Doubles with every failure, between one and two times the base: robots do not come back in step."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._base_s = SHORTEST_S

    def next_delay_s(self) -> float:
        """Seconds to wait now; SHORTEST_S to LONGEST_S."""
        delay_s = min(self._base_s * (1.0 + self._random.random()), LONGEST_S)
        self._base_s = min(2.0 * self._base_s, LONGEST_S / 2.0)
        return delay_s

    def succeeded(self) -> None:
        """The service works again: the next failure starts from the shortest wait."""
        self._base_s = SHORTEST_S
