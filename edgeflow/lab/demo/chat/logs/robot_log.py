"""A log of robot states: one short line per moment, with the fault, the held object and the side.

    Robot log: time fault holding side
    412 none cube left
    413 motor cube left

A line is seven tokens: three digits of time, one token per word, and the line end. Events come in episodes of a few
lines. They are rare in some logs, with a handful of lines, and fill most of others.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TITLE: Final = "Robot log: time fault holding side"
SIDES: Final = ("left", "right", "table", "home")
HELD: Final = ("cube", "ball", "plate", "cup", "box", "ring")
FAULTS: Final = ("joint", "camera", "motor", "link", "gripper", "worker")
NOTHING, NO_FAULT = "nothing", "none"
LINE_TOKENS: Final = 7
MOST_LINES: Final = 600
ONCE: Final = 0.6  # share of the columns in which one value occurs in a single line
RARE: Final = 0.5  # share of the columns whose number of events is sampled on a logarithmic scale
_LAST_TIME: Final = 999
_LONGEST_EPISODE: Final = 8  # lines
_FEWEST: Final = 2  # lines of events in a column that has any
_BUSY, _BUSIEST = 0.2, 0.9  # share of the region that events fill in a column that is not rare, and in any


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log."""

    time: int
    """In seconds."""
    fault: str
    held: str
    side: str

    def line(self) -> str:
        """The line without its end."""
        return f"{self.time:03d} {self.fault} {self.held} {self.side}"


@dataclass(frozen=True, slots=True)
class RobotLog:
    """Consecutive entries."""

    entries: tuple[LogLine, ...]

    def text(self) -> str:
        """The log as the model reads it."""
        return "\n".join((TITLE, *(entry.line() for entry in self.entries)))


class LogSource:
    """Generates logs; the same generator gives the same ones."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def draw(self, lines: int, region: range | None = None) -> RobotLog:
        """A log of `lines` entries.

        region: the lines that may hold the most frequent fault, object and side, and values that occur only once; None
        = all lines. Other lines hold at most some of the other values.
        """
        region = range(lines) if region is None else region
        faults = self._column(lines, region, FAULTS, NO_FAULT)
        held = self._column(lines, region, HELD, NOTHING)
        sides = self._column(lines, region, SIDES, "")
        columns = zip(self._times(lines), faults, held, sides, strict=True)
        return RobotLog(tuple(LogLine(*values) for values in columns))

    def _times(self, lines: int) -> list[int]:
        """Increasing times, by one or two seconds per line while three digits suffice."""
        longest = 2 if lines * 3 // 2 < _LAST_TIME * 9 // 10 else 1
        steps = [self._rng.randint(1, longest) for _ in range(lines)]
        first = self._rng.randint(0, _LAST_TIME - sum(steps))
        return [first + sum(steps[:line]) for line in range(lines)]

    def _column(self, lines: int, region: range, values: Sequence[str], quiet: str) -> list[str]:
        """One value per line; of the values that are not `quiet`, one is clearly the most frequent, and it occurs only
        in the region. If all values but the most frequent one are quiet, the lines outside the region are all quiet;
        there are no quiet sides.
        """
        rng = self._rng
        if quiet and rng.random() < 0.04:
            return [quiet] * lines
        busy = self._busy(len(region)) if quiet else len(region)
        winner, *others = rng.sample(values, 1 + min(rng.randint(0, 3), (busy - 1) // 3))
        counts = _counts(rng, busy, len(others))
        if quiet and others and rng.random() < ONCE:
            counts[-1] = 1
        inside = self._spread(dict(zip((winner, *others), counts, strict=True)), len(region), quiet or winner)
        outside = lines - len(region)
        spare = counts[0] * 5 // 8 - max(counts[1:]) if others else 0
        strays: dict[str, int] = {}
        if others and outside:
            if not quiet:  # every line needs a side: one that is never named inside the region as often
                strays = _even(rng, [value for value in values if value != winner], outside)
            elif min(spare, outside) > 1 and counts[-1] > 1 and rng.random() < 0.6:
                strays = {rng.choice(others): rng.randint(2, min(spare, outside))}
        around = self._spread(strays, outside, quiet)
        return around[: region.start] + inside + around[region.start :]

    def _busy(self, lines: int) -> int:
        """The number of lines of a region that hold an event: from a few to nearly all."""
        rng, most = self._rng, lines * _BUSIEST
        if rng.random() < RARE:
            return max(1, min(round(most), round(_FEWEST * math.pow(most / _FEWEST, rng.random()))))
        return max(1, round(rng.uniform(lines * _BUSY, most)))

    def _spread(self, counts: dict[str, int], lines: int, quiet: str) -> list[str]:
        """The values in episodes at random places, with `quiet` in between."""
        rng, episodes = self._rng, []
        for value, count in counts.items():
            while count:
                length = min(count, rng.randint(1, _LONGEST_EPISODE))
                episodes.append([value] * length)
                count -= length
        episodes += [[quiet]] * (lines - sum(map(len, episodes)))
        rng.shuffle(episodes)
        return [value for episode in episodes for value in episode]


def _counts(rng: random.Random, busy: int, others: int) -> list[int]:
    """Lines of the most frequent value, then of each other value: at most 5/8 of its lines, and at least two fewer."""
    shares = [1.0, *(rng.uniform(0.05, 0.6) for _ in range(others))]
    total = sum(shares)
    counts = [max(1, int(busy * share / total)) for share in shares[1:]]
    return [busy - sum(counts), *counts]


def _even(rng: random.Random, values: Sequence[str], lines: int) -> dict[str, int]:
    """Lines for each value, almost equally many."""
    return dict(Counter(values[(line + rng.randint(0, 1)) % len(values)] for line in range(lines)))
