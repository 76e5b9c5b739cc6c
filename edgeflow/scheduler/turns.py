"""Turns of frames at the declared rate, and what a frame may take before its turn: integers only, time is an argument.

A frame is *due* if its session has a turn for it, and *early* if it comes before that. Early frames take gaps, as chat
does. What holds:

    An early frame never delays a due frame of another session by more than the longest pass in flight.

Two rules make it so. A pass holds either due or early frames. Early ones run only while no due one has anything to run;
those in flight rest meanwhile.

By a third rule, robots that keep their rate are not delayed at all: an early frame begins, or goes on, only where all
passes that it still needs will end before the next frame of such a robot is expected, even if one of them is slow. A
robot whose last frame was early, or the one that waits, is ahead of its rate: nothing is kept free for it.

A frame that runs early uses up what its session has earned: the next one is due a period after it. So a robot gets at
least what it declared, and one that is faster has no more due frames than it declared.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.contract import PassTimes
from edgeflow.scheduler.cost import CostModel, Gaps, PassSample, Slowness

BURST = 3  # frames at once, at the declared rate
ROUNDING_NS = 500_000  # a period is declared in whole milliseconds
FASTER_PERCENT = 5  # that a robot may send faster than it declared, as clocks and timers do


class TokenBucket:
    """A bucket that earns a token per period and holds at most `burst`; it starts full."""

    def __init__(self, period_ns: int, burst: int, now_ns: int) -> None:
        self._period_ns = period_ns
        self._most_ns = burst * period_ns
        self._earned_ns = self._most_ns
        self._then_ns = now_ns

    @classmethod
    def of_period(cls, period_ns: int, now_ns: int) -> TokenBucket:
        """The turns of a session that declared this time between frames."""
        return cls(max(period_ns - max(ROUNDING_NS, period_ns * FASTER_PERCENT // 100), 1), BURST, now_ns)

    def take(self, now_ns: int) -> bool:
        """Take a token; False if there is none."""
        self._earn(now_ns)
        if self._earned_ns < self._period_ns:
            return False
        self._earned_ns -= self._period_ns
        return True

    def empty(self, now_ns: int) -> None:
        """Lose what was earned: the next token is there in a period."""
        self._earn(now_ns)
        self._earned_ns = 0

    def ready_at_ns(self, now_ns: int) -> int:
        """The time at which the next token can be taken; `now_ns` or earlier if there is one."""
        self._earn(now_ns)
        return now_ns + self._period_ns - self._earned_ns

    def _earn(self, now_ns: int) -> None:
        self._earned_ns = min(self._earned_ns + max(now_ns - self._then_ns, 0), self._most_ns)
        self._then_ns = now_ns


@dataclass(frozen=True, slots=True)
class EarlyWork:
    """The passes that frames need until they leave, if they run by themselves."""

    prefills: int
    decodes: int
    """Decode rows of the first pass (Pass.decode_rows)."""
    passes: int
    """Passes until the last of them leaves."""
    whole: bool = False
    """All passes in one."""


class EarlyFrames:
    """The gaps between due frames. gaps: as the worker sees them; cost: the times of control's passes."""

    def __init__(self, gaps: Gaps, cost: CostModel[PassTimes]) -> None:
        self._gaps = gaps
        self._cost = cost
        self._slowness = Slowness()

    def observe(self, sample: PassSample, now_ns: int) -> None:
        """Record the time of a pass of control that ended now."""
        expected_ns = self._cost.times.pass_ns(sample.prefills, sample.decodes, sample.whole)
        if expected_ns > 0:
            self._slowness.observe(expected_ns, sample.ns)
        if self._cost.observe([sample], now_ns):
            self._slowness.forget()

    def next_ns(self, session: int, now_ns: int) -> int:
        """When the next frame of a session is expected; UNBOUNDED where none is."""
        return self._gaps.next_ns(session, now_ns)

    def end_ns(self, work: EarlyWork, now_ns: int) -> int:
        """When this work would end, after its launch and the passes in flight, and with its longest pass a slow one."""
        times = self._cost.times
        need_ns = longest_ns = times.pass_ns(work.prefills, work.decodes, work.whole)
        if not work.whole and work.passes > 1:
            next_ns = times.pass_ns(0, work.prefills + work.decodes)
            need_ns, longest_ns = need_ns + (work.passes - 1) * next_ns, max(longest_ns, next_ns)
        slow_ns = longest_ns * (self._slowness.percent - 100) // 100
        return now_ns + max(self._gaps.busy_ns(now_ns), times.launch_ns) + need_ns + slow_ns

    def wake_at_ns(self, now_ns: int) -> int:
        """When an expected frame will count as absent, which may make room; UNBOUNDED where none is late."""
        return self._gaps.silent_at_ns(now_ns)
