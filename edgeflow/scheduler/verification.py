"""The number of passes in which drafted frames are verified, measured in service. Integers only.

A frame that leaves before it is verified would have needed more passes than it had. Newer frames overtake the slow
ones, so the mean over the verified ones is too small. The distribution is estimated from the share of the frames still
in flight at a pass that it verifies, multiplied from pass to pass (Kaplan and Meier, 1958).
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

WHOLE = 1 << 20  # what shares add up to
LEAST_SAMPLES = 50
KEPT_SAMPLES = 500  # of each K and tolerance, so that what is measured follows the scene
CHANGED_PERCENT = 10  # of the mean, by which forecasts change
STRATA = 64  # that draws come from in turn


@dataclass(frozen=True, slots=True)
class VerificationSample:
    """A frame that left."""

    stages: int
    """K of its session."""
    tolerance_bins: int
    passes: int
    """Passes it took."""
    verified: bool
    """It was verified in the last of them; False = it left before."""


@dataclass(frozen=True, slots=True)
class VerificationPasses:
    """The distribution of the passes that frames need."""

    shares: tuple[int, ...]
    """The shares of frames that are verified in their first, second, ... pass, of WHOLE."""

    @property
    def mean_percent(self) -> int:
        """The mean number of passes, times 100."""
        return 100 * sum(passes * share for passes, share in enumerate(self.shares, start=1)) // WHOLE


class Draws:
    """The passes of one frame after another, the same for the same seed.

    STRATA in a row have the shares as they are, in an order without a pattern: it decides which frames are overtaken.
    """

    def __init__(self, verification: VerificationPasses, seed: int) -> None:
        self._below = tuple(accumulate(verification.shares))
        self._dice = random.Random(seed)
        self._strata: list[int] = []

    def take(self) -> int:
        """The passes of the next frame."""
        if not self._strata:
            self._strata = self._dice.sample(range(STRATA), STRATA)
        middle = (2 * self._strata.pop() + 1) * WHOLE // (2 * STRATA)
        return bisect_right(self._below, middle) + 1


def estimate(samples: Iterable[VerificationSample], stages: int) -> VerificationPasses:
    """The estimate from frames of one K and tolerance; frames that outlast every sample take K passes."""
    events, leaving = Counter[int](), Counter[int]()
    for sample in samples:
        leaving[sample.passes] += 1
        events[sample.passes] += sample.verified
    at_risk, remain, shares = leaving.total(), WHOLE, []
    for passes in range(1, stages):
        # Frames that left unverified count among those at risk up to their last pass, and then no more.
        left = remain - remain * events[passes] // at_risk if at_risk else remain
        shares.append(remain - left)
        remain = left
        at_risk -= leaving[passes]
    return VerificationPasses((*shares, remain))


class VerificationModel:
    """The estimate from the latest frames of each K and tolerance. A frame has at least one pass and at most K."""

    def __init__(self) -> None:
        self._samples: dict[tuple[int, int], deque[VerificationSample]] = {}
        self._reported: dict[tuple[int, int], int] = {}

    def observe(self, samples: Iterable[VerificationSample]) -> bool:
        """Record frames that left; True when forecasts change, since some mean became known or moved."""
        kinds: set[tuple[int, int]] = set()
        for sample in samples:
            kind = sample.stages, sample.tolerance_bins
            self._samples.setdefault(kind, deque(maxlen=KEPT_SAMPLES)).append(sample)
            kinds.add(kind)
        changed = [self._changed(*kind) for kind in kinds]
        return any(changed)

    def of(self, stages: int, tolerance_bins: int) -> VerificationPasses | None:
        """The estimate for a K and a tolerance; None before there are enough frames."""
        kept = self._samples.get((stages, tolerance_bins), ())
        return estimate(kept, stages) if len(kept) >= LEAST_SAMPLES else None

    def _changed(self, stages: int, tolerance_bins: int) -> bool:
        found = self.of(stages, tolerance_bins)
        if found is None:
            return False
        reported = self._reported.get((stages, tolerance_bins), 0)
        if 100 * abs(found.mean_percent - reported) <= CHANGED_PERCENT * reported:
            return False
        self._reported[stages, tolerance_bins] = found.mean_percent
        return True
