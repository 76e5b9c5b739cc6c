"""The state that a robot of a load test reports: numbers that change slowly, the same ones for the same seed."""

from __future__ import annotations

import math
from random import Random

SHORTEST_S, LONGEST_S = 4.0, 10.0  # period of a number


class Posture:
    """As many sines between -1 and 1, each with its own period and phase."""

    def __init__(self, numbers: int, random: Random) -> None:
        self._sines = [(random.uniform(SHORTEST_S, LONGEST_S), random.random()) for _ in range(numbers)]

    def at(self, now_ns: int) -> list[float]:
        """The numbers at a moment."""
        return [math.sin(2 * math.pi * (now_ns / 1e9 / period_s + phase)) for period_s, phase in self._sines]
