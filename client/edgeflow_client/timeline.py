"""The rows of a chunk in time: the row that is due, the end of a chunk, and the row executed at a past moment."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MAX_PLAYS = 64  # executed chunks that captures can refer to


@dataclass(frozen=True, slots=True)
class Timeline:
    """The moments of a chunk's rows, in nanoseconds on the robot's clock: row i is for stamp_ns + i * step_ns."""

    stamp_ns: int
    step_ns: int = 0
    """0 if the horizon is 1."""
    horizon: int = 1

    def step_at(self, now_ns: int) -> int:
        """The row that is due: the first one before its moment, the last one after the end of the chunk."""
        if self.horizon == 1:
            return 0
        return max(0, min((now_ns - self.stamp_ns) // self.step_ns, self.horizon - 1))

    def moment_ns(self, step: int) -> int:
        """The moment for which a row is meant."""
        return self.stamp_ns + step * self.step_ns

    def due_age_ns(self, now_ns: int) -> int:
        """Time since the moment of the row that is due."""
        return now_ns - self.moment_ns(self.step_at(now_ns))

    def valid_until_ns(self, received_ns: int, validity_ns: int, limit_ns: int | None) -> int:
        """When the chunk ends: `validity_ns` after its receipt, or before a row is older than the limit; None = none.

        With a limit shorter than a step, the row that is due at receipt is the last one: the robot would hold before
        the next one is due.
        """
        until_ns = received_ns + validity_ns
        if limit_ns is None:
            return until_ns
        last = self.step_at(received_ns) if limit_ns < self.step_ns else self.horizon - 1
        return min(until_ns, self.moment_ns(last) + limit_ns)


@dataclass(frozen=True, slots=True)
class _Play:
    seq: int
    timeline: Timeline
    from_ns: int
    until_ns: int


class PlayLog:
    """The times at which the last MAX_PLAYS chunks were executed."""

    def __init__(self) -> None:
        self._plays: deque[_Play] = deque(maxlen=MAX_PLAYS)

    def begin(self, seq: int, timeline: Timeline, from_ns: int, until_ns: int) -> None:
        """The chunk that answers frame `seq` is executed from from_ns, at most until until_ns; it replaces another."""
        self.end(from_ns)
        self._plays.append(_Play(seq, timeline, from_ns, until_ns))

    def end(self, now_ns: int) -> None:
        """No chunk is executed from now on."""
        if self._plays and self._plays[-1].until_ns > now_ns:
            last = self._plays.pop()
            self._plays.append(_Play(last.seq, last.timeline, last.from_ns, now_ns))

    def at(self, instant_ns: int) -> tuple[int, int] | None:
        """The frame whose chunk was executed at an instant, and its row; None without one, or for a single action."""
        for play in reversed(self._plays):
            if play.from_ns <= instant_ns:
                played = instant_ns < play.until_ns and play.timeline.horizon > 1
                return (play.seq, play.timeline.step_at(instant_ns)) if played else None
        return None
