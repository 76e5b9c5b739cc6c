"""What counts as growth, as lost and as met: pure functions over what was measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MIB = 1 << 20
GROWTH_BYTES = 8 * MIB
GROWTH_SHARE = 0.01
SLOPE_BYTES = MIB  # per SLOPE_FRAMES
SLOPE_FRAMES = 100_000
EARLY, LATE = (0.4, 0.5), (0.9, 1.0)  # shares of the frames; what comes before is warm-up
FEWEST = 3  # samples in each window


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one process. growth_bytes: median of the last window minus that of the early one. slope: a 100,000 frames."""

    early_bytes: float
    growth_bytes: float
    slope_bytes: float

    @property
    def share(self) -> float:
        return self.growth_bytes / self.early_bytes

    @property
    def bounded(self) -> bool:
        """Whether this is a service that may run for a week."""
        small = self.growth_bytes <= GROWTH_BYTES and self.share <= GROWTH_SHARE
        return small and self.slope_bytes <= SLOPE_BYTES


def growth(frames: Sequence[float], resident_bytes: Sequence[float]) -> Growth:
    """Resident memory over frames served; ValueError when there are too few samples to say anything."""
    x, y = np.asarray(frames, float), np.asarray(resident_bytes, float)
    early, late = _window(x, y, EARLY), _window(x, y, LATE)
    if min(len(early), len(late)) < FEWEST:
        raise ValueError(f"{len(early)} and {len(late)} samples in the windows, {FEWEST} are needed")
    settled = x >= EARLY[0] * x[-1]
    before = float(np.median(early))
    slope = theil_sen(x[settled], y[settled]) * SLOPE_FRAMES
    return Growth(before, float(np.median(late)) - before, slope)


def _window(x: np.ndarray, y: np.ndarray, shares: tuple[float, float]) -> np.ndarray:
    low, high = (share * x[-1] for share in shares)
    return y[(x >= low) & (x <= high)]


def theil_sen(x: np.ndarray, y: np.ndarray) -> float:
    """The median slope of all pairs: single steps and outliers do not move it."""
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    rise = y[second] - y[first]
    return float(np.median(rise[run > 0] / run[run > 0]))


def percentile(values: Sequence[float], share: float) -> float:
    """By linear interpolation; NaN when there is no value, so that no bar is met by measuring nothing."""
    return float(np.percentile(values, share)) if len(values) else math.nan


def rise_percent(with_fault: Sequence[float], without: Sequence[float], share: float) -> float:
    """How much higher a percentile is, in per cent of the undisturbed one."""
    return 100 * (percentile(with_fault, share) / percentile(without, share) - 1)


@dataclass(frozen=True, slots=True)
class Account:
    """Frames by how often they were disposed of. untold: never; repeated: more than once; strange: not accepted."""

    accepted: int
    untold: tuple[int, ...]
    repeated: tuple[int, ...]
    strange: tuple[int, ...]


def account(accepted: Iterable[int], told: Mapping[int, int]) -> Account:
    """accepted: the frames the service took. told: how many dispositions each frame got."""
    taken, counts = set(accepted), Counter(told)
    return Account(
        len(taken),
        tuple(sorted(seq for seq in taken if not counts[seq])),
        tuple(sorted(seq for seq, times in counts.items() if times > 1)),
        tuple(sorted(set(counts) - taken)),
    )


@dataclass(frozen=True, slots=True)
class Row:
    """A figure and its bar: met when it is not above. bar None: told, not judged."""

    what: str
    value: float
    unit: str = ""
    bar: float | None = None

    @property
    def met(self) -> bool:
        """NaN, which is no measurement, meets nothing."""
        return self.bar is None or self.value <= self.bar


def spread(what: str, values: Sequence[float], unit: str, **bars: float) -> list[Row]:
    """p50, p99 and max of a quantity; bars by these names."""
    shares = {"p50": 50, "p99": 99, "max": 100}
    return [Row(f"{what}, {name}", percentile(values, share), unit, bars.get(name)) for name, share in shares.items()]
