"""Delays between attempts to connect."""

from __future__ import annotations

from random import Random

SHORTEST_S = 0.5  # at most two attempts per second
LONGEST_S = 8.0


class Backoff:
    """A delay that doubles with every failure, randomised so that robots do not reconnect in step."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._base_s = SHORTEST_S

    def next_delay_s(self) -> float:
        """The next delay in seconds, SHORTEST_S to LONGEST_S."""
        delay_s = min(self._base_s * (1.0 + self._random.random()), LONGEST_S)
        self._base_s = min(2.0 * self._base_s, LONGEST_S / 2.0)
        return delay_s

    def succeeded(self) -> None:
        """Start over: the next failure waits the shortest delay."""
        self._base_s = SHORTEST_S
