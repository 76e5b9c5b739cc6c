"""The cost of a pass: measured at a few corners, interpolated linearly between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

from edgeflow.contract import PassTimes

DRIFT_PERCENT = 20
DRIFT_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class PassSample:
    """One pass that ran. decodes: as Pass.decode_rows. lead_ns: as PassTimes.launch_ns, of this pass."""

    prefills: int
    decodes: int
    ns: int
    lead_ns: int = 0


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """Times of chat's passes: `step_ns` for a decode row, and `row_ns` for each further row of a prompt's chunk.

    The prefills of such a pass are the rows of its chunk.
    """

    step_ns: int
    row_ns: int

    def pass_ns(self, prefills: int, decodes: int) -> int:
        return self.step_ns + (prefills + decodes - 1) * self.row_ns

    def corrected(self, percent: int, *, with_prefill: bool) -> ChunkTimes:
        """Decode rows tell how the device has changed; a chunk's time depends on more than its rows."""
        if with_prefill:
            return self
        return ChunkTimes(max(self.step_ns * percent // 100, 1), max(self.row_ns * percent // 100, 1))

    def rows_in(self, room_ns: int, most: int) -> int:
        """The number of prompt rows that fit into `room_ns`, at least one and at most `most`."""
        return max(1, min(most, (room_ns - self.step_ns) // max(self.row_ns, 1)))


TimesOf = TypeVar("TimesOf", PassTimes, ChunkTimes)


class CostModel(Generic[TimesOf]):
    """Pass times that follow the device: what drifted by more than 20 % takes its measured value."""

    def __init__(self, times: TimesOf) -> None:
        self.times: TimesOf = times
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
        before, self.times = self.times, self.times.corrected(percent, with_prefill=with_prefill)
        return self.times != before
