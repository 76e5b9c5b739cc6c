"""Pure functions that judge measurements: memory growth, lost frames, targets."""

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
EARLY, LATE = (0.4, 0.5), (0.9, 1.0)  # shares of the frames; earlier frames are warm-up
FEWEST = 3  # samples in each window


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory growth of one process."""

    early_bytes: float
    growth_bytes: float
    """Median of the last window minus that of the early one."""
    slope_bytes: float
    """Growth per 100,000 frames."""

    @property
    def share(self) -> float:
        return self.growth_bytes / self.early_bytes

    @property
    def bounded(self) -> bool:
        """True when growth is small enough for a service to run for a week."""
        small = self.growth_bytes <= GROWTH_BYTES and self.share <= GROWTH_SHARE
        return small and self.slope_bytes <= SLOPE_BYTES


def growth(frames: Sequence[float], resident_bytes: Sequence[float]) -> Growth:
    """The growth of resident memory over frames served; ValueError when there are too few samples."""
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
    """The median slope of all pairs (Theil-Sen); single steps and outliers do not move it."""
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    rise = y[second] - y[first]
    return float(np.median(rise[run > 0] / run[run > 0]))


def percentile(values: Sequence[float], share: float) -> float:
    """Percentile by linear interpolation; NaN without values, so that an empty measurement meets no target."""
    return float(np.percentile(values, share)) if len(values) else math.nan


def rise_percent(with_fault: Sequence[float], without: Sequence[float], share: float) -> float:
    """The rise of a percentile, in per cent of the undisturbed one."""
    return 100 * (percentile(with_fault, share) / percentile(without, share) - 1)


@dataclass(frozen=True, slots=True)
class Account:
    """Frames by number of dispositions."""

    accepted: int
    untold: tuple[int, ...]
    """Accepted frames without a disposition."""
    repeated: tuple[int, ...]
    """Frames with more than one disposition."""
    strange: tuple[int, ...]
    """Frames with a disposition that were not accepted."""


def account(accepted: Iterable[int], dispositions: Mapping[int, int]) -> Account:
    """Compare the frames that the service accepted with `dispositions`, the number of dispositions of each frame."""
    taken, counts = set(accepted), Counter(dispositions)
    return Account(
        len(taken),
        tuple(sorted(seq for seq in taken if not counts[seq])),
        tuple(sorted(seq for seq, times in counts.items() if times > 1)),
        tuple(sorted(set(counts) - taken)),
    )


@dataclass(frozen=True, slots=True)
class BoundedFigure:
    """A figure and its upper bound `bar`; None: reported without a bound."""

    what: str
    value: float
    unit: str = ""
    bar: float | None = None

    @property
    def met(self) -> bool:
        """True when the figure is within its bound; NaN never is."""
        return self.bar is None or self.value <= self.bar  # false for NaN, which stands for "not measured"


def spread(what: str, values: Sequence[float], unit: str, **bars: float) -> list[BoundedFigure]:
    """Rows for p50, p99 and max of a quantity; bars: upper bounds by these names."""
    shares = {"p50": 50, "p99": 99, "max": 100}
    return [
        BoundedFigure(f"{what}, {name}", percentile(values, share), unit, bars.get(name))
        for name, share in shares.items()
    ]
