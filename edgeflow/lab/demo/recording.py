"""Recorded runs of a robot: rate, age and jitter of its actions, frames to show, and successes with their interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeflow_client.loadtest.measure import Distribution, distribution

Series = NDArray[np.float64]
_NORMAL_95 = 1.959964


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Figures of one run."""

    seconds: float
    actions: int
    fps: float
    """Actions per second over `seconds`."""
    age_ms: Distribution
    """From capture to receipt, on the robot's clock."""
    interval_ms: Distribution
    """Between actions of the same stretch; jitter_ms is the standard deviation of these intervals."""

    @property
    def jitter_ms(self) -> float:
        return self.interval_ms.deviation


@dataclass(frozen=True, slots=True, eq=False)
class TimeSeries:
    """One entry per window `[W]`: its middle in seconds from the start, actions per second, and median age (NaN
    without actions).
    """

    seconds: Series
    fps: Series
    age_ms: Series


class RunRecorder:
    """Records every action in stretches of time; between them (during a reset or a picture) nothing is recorded."""

    def __init__(self) -> None:
        self._received_ns: list[int] = []
        self._age_ns: list[int] = []
        self._stretch: list[int] = []
        self._elapsed_ns = 0  # total of the finished stretches
        self._started_ns: int | None = None
        self._stretches = 0

    def start(self, now_ns: int) -> None:
        """Begin a stretch."""
        if self._started_ns is not None:
            raise ValueError("a stretch is being recorded already")
        self._started_ns = now_ns
        self._stretches += 1

    def stop(self, now_ns: int) -> None:
        """End the stretch."""
        self._elapsed_ns = self.elapsed_ns(now_ns)
        self._started_ns = None

    def record(self, received_ns: int, age_ns: int) -> None:
        """Record an action; ignored outside a stretch."""
        if self._started_ns is not None and received_ns >= self._started_ns:
            self._received_ns.append(self._elapsed_ns + received_ns - self._started_ns)
            self._age_ns.append(age_ns)
            self._stretch.append(self._stretches)

    def elapsed_ns(self, now_ns: int) -> int:
        """Recorded time so far in nanoseconds, including the current stretch."""
        return self._elapsed_ns + (now_ns - self._started_ns if self._started_ns is not None else 0)

    @property
    def ages_ms(self) -> Series:
        """The ages of all actions, `[N]`."""
        return np.array(self._age_ns, dtype=np.float64) / 1e6

    def summary(self, now_ns: int) -> RunSummary:
        seconds = self.elapsed_ns(now_ns) / 1e9
        return RunSummary(
            seconds=seconds,
            actions=len(self._age_ns),
            fps=len(self._age_ns) / seconds if seconds > 0 else 0.0,
            age_ms=distribution(self.ages_ms),
            interval_ms=distribution(self._intervals_ms()),
        )

    def series(self, window_s: float) -> TimeSeries:
        """The finished stretches divided into windows; an incomplete last window is omitted."""
        windows = int(self._elapsed_ns / 1e9 / window_s)
        index = (np.array(self._received_ns, dtype=np.float64) / 1e9 / window_s).astype(int)
        ages_ms = self.ages_ms
        counts = np.bincount(index, minlength=windows)[:windows]
        medians = [float(np.median(ages_ms[index == w])) if counts[w] else math.nan for w in range(windows)]
        middles = np.asarray((np.arange(windows) + 0.5) * window_s, np.float64)
        return TimeSeries(middles, np.asarray(counts / window_s, np.float64), np.asarray(medians, np.float64))

    def _intervals_ms(self) -> Series:
        received_ms = np.array(self._received_ns, dtype=np.float64) / 1e6
        same_stretch = np.diff(np.array(self._stretch)) == 0
        return np.asarray(np.diff(received_ms)[same_stretch], np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class CommandedFrame:
    """A camera frame `[height, width, 3]` uint8 and the command given for it."""

    image: NDArray[np.uint8]
    seconds: float
    """Time of capture, from the start of its episode."""
    shift: tuple[float, float]
    """Commanded shift in the image plane, right and up, in metres."""
    caption: str
    """One or two lines of text."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval, which need not be symmetric."""

    value: float
    low: float
    high: float


def wilson(successes: int, trials: int) -> Estimate:
    """The share of successes with its Wilson interval; 0 to 1 without trials."""
    if not 0 <= successes <= trials:
        raise ValueError(f"successes are 0 to trials ({trials}), got {successes}")
    if trials == 0:
        return Estimate(math.nan, 0.0, 1.0)
    share, z = successes / trials, _NORMAL_95
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return Estimate(share, max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share)))


@dataclass(frozen=True, slots=True)
class ModeResult:
    """The run of one mode: rate and age of its actions, and how often the robot succeeded."""

    mode: str
    summary: RunSummary
    episodes: int
    successes: int

    @property
    def success(self) -> Estimate:
        return wilson(self.successes, self.episodes)
