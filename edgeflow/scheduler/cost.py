"""The cost of a pass: measured at a few corners, interpolated linearly between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

from edgeflow.types import PassTimes

DRIFT_PERCENT = 20
DRIFT_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class PassSample:
    """One pass that ran. lead_ns: as PassTimes.launch_ns, of this pass."""

    prefills: int
    decodes: int
    ns: int
    lead_ns: int = 0


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
