"""What a pass costs: measured at a few corners, straight lines between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from statistics import median

DRIFT_PERCENT = 20
DRIFT_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Times of a pass as the worker's loop sees it, nanoseconds.

    stages: K. prefill_ns: one prefill. two_prefills_ns: those of two sessions. packed_ns: one prefill and K-1 decode
    rows. decode_ns: one decode row. decodes_ns: K-1 decode rows.
    """

    stages: int
    prefill_ns: int
    two_prefills_ns: int
    packed_ns: int
    decode_ns: int
    decodes_ns: int

    def pass_ns(self, prefills: int, decodes: int) -> int:
        """A pass of any shape. Prefills and rows add up at the slopes of the corners, which never fall."""
        others = max(self.stages - 1, 1)
        if prefills == 0:
            slope = max(self.decodes_ns - self.decode_ns, 0)
            return self.decode_ns + slope * (decodes - 1) // max(others - 1, 1)
        more = max(self.two_prefills_ns - self.prefill_ns, 0) * (prefills - 1)
        return self.prefill_ns + more + max(self.packed_ns - self.prefill_ns, 0) * decodes // others

    def scaled(self, percent: int) -> PassTimes:
        """All of it, times percent / 100."""
        stages, *times = astuple(self)
        return PassTimes(stages, *(max(time * percent // 100, 1) for time in times))


@dataclass(frozen=True, slots=True)
class PassSample:
    """One pass that ran."""

    prefills: int
    decodes: int
    ns: int


class CostModel:
    """Pass times that follow the device: a corner that drifted by more than 20 % takes its measured value."""

    def __init__(self, times: PassTimes) -> None:
        self.times = times
        self._ratios: dict[bool, list[int]] = {True: [], False: []}

    def observe(self, samples: Iterable[PassSample]) -> bool:
        """Passes with and without a prefill are judged apart; True when the times were changed."""
        for sample in samples:
            expected = self.times.pass_ns(sample.prefills, sample.decodes)
            if expected > 0:
                self._ratios[sample.prefills > 0].append(sample.ns * 100 // expected)
        changed = [self._correct(with_prefill) for with_prefill in (True, False)]
        return any(changed)

    def _correct(self, with_prefill: bool) -> bool:
        ratios = self._ratios[with_prefill]
        if len(ratios) < DRIFT_SAMPLES:
            return False
        percent = int(median(ratios))
        ratios.clear()
        if abs(percent - 100) <= DRIFT_PERCENT:
            return False
        moved = self.times.scaled(percent)
        if with_prefill:
            kept = {"decode_ns": self.times.decode_ns, "decodes_ns": self.times.decodes_ns}
        else:
            kept = {
                "prefill_ns": self.times.prefill_ns,
                "two_prefills_ns": self.times.two_prefills_ns,
                "packed_ns": self.times.packed_ns,
            }
        self.times = replace(moved, **kept)
        return True
