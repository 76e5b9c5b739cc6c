"""The rows of a chunk in time: the row that is due, the end of a chunk, and the row executed at a past moment."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from edgeflow_client.trajectory import Playing

MAX_PLAYS = 64  # executed chunks that captures can refer to


def arrival_start_ns(captured_ns: int, now_ns: int, step_ns: int) -> int:
    """The moment of the first row of an answer that begins on its arrival, now: the nearest whole number of steps from
    the capture of its frame. So rows of later frames meet it, and the first row lasts half a step at least.
    """
    steps = (2 * max(now_ns - captured_ns, 0) + step_ns) // (2 * step_ns)
    return captured_ns + steps * step_ns


@dataclass(frozen=True, slots=True)
class Timeline:
    """The moments of a chunk's rows, in nanoseconds on the robot's clock: row i is for start_ns + i * step_ns."""

    start_ns: int
    """The capture of the frame, or about the arrival of its answer where the robot stood still until then."""
    step_ns: int = 0
    """0 if the horizon is 1."""
    horizon: int = 1
    """Rows that are executed; the robot then stays at the last one."""

    def step_at(self, now_ns: int) -> int:
        """The row that is due: the first one before its moment, the last one after the end of the chunk."""
        if self.horizon == 1 or not self.step_ns:
            return 0
        return max(0, min((now_ns - self.start_ns) // self.step_ns, self.horizon - 1))

    def moment_ns(self, step: int) -> int:
        """The moment for which a row is meant."""
        return self.start_ns + step * self.step_ns

    @property
    def over_ns(self) -> int:
        """The moment at which the last row was executed."""
        return self.moment_ns(self.horizon)

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
    over_ns: int
    """The moment from which the robot stands still, as far as the rows decide."""


class PlayLog:
    """The times at which the last MAX_PLAYS chunks were executed."""

    def __init__(self) -> None:
        self._plays: deque[_Play] = deque(maxlen=MAX_PLAYS)

    def begin(self, seq: int, timeline: Timeline, from_ns: int, until_ns: int, over_ns: int) -> None:
        """The chunk that answers frame `seq` is executed from from_ns, at most until until_ns; it replaces another.

        over_ns: when its last row is executed.
        """
        self.end(from_ns)
        self._plays.append(_Play(seq, timeline, from_ns, until_ns, over_ns))

    def end(self, now_ns: int) -> None:
        """No chunk is executed from now on."""
        if self._plays and self._plays[-1].until_ns > now_ns:
            last = self._plays.pop()
            self._plays.append(replace(last, until_ns=now_ns))

    def at(self, instant_ns: int) -> Playing | None:
        """The row executed at an instant; None without one, or for a single action."""
        for play in reversed(self._plays):
            if play.from_ns <= instant_ns:
                played = instant_ns < play.until_ns and play.timeline.step_ns > 0
                step, start_ns = play.timeline.step_at(instant_ns), play.timeline.start_ns
                return Playing(play.seq, step, start_ns) if played else None
        return None

    def rests_at(self, instant_ns: int) -> bool:
        """True if all rows had been executed at an instant, and nothing has begun since."""
        if not self._plays:
            return True
        last = self._plays[-1]
        return last.from_ns <= instant_ns and instant_ns >= min(last.until_ns, last.over_ns)
