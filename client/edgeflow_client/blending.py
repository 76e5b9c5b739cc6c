"""Blending of chunks: the values to execute if several chunks have an action for the same moment. numpy only.

Every policy is a pure function of the newest chunk, the earlier ones and their stamps. It is applied once, when a
chunk arrives, so that execution depends only on the blended chunk and the clock. Chunks are aligned to whole steps: row
j of the newest meets row j + k of one captured k steps before, k rounded to the nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgeflow_client.errors import InvalidArgument
from edgeflow_client.pose import Vector
from edgeflow_client.timeline import Timeline

MAX_ENSEMBLE = 200  # the most chunks that an ensemble averages, for any horizon
MAX_COEFFICIENT = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class TimedChunk:
    """A chunk and the moments of its rows."""

    timeline: Timeline
    raw: Vector
    """The policy's chunk [horizon, dims]."""
    played: Vector
    """The chunk after blending."""


class Blending(Protocol):
    """A way to blend a chunk with earlier ones."""

    def keeps(self, horizon: int, /) -> int:
        """The number of earlier chunks that are needed at most."""

    def blend(self, raw: Vector, timeline: Timeline, earlier: Sequence[TimedChunk], /) -> Vector:
        """The chunk to execute [horizon, dims], on the timeline of the newest one, `raw`. earlier: oldest first."""


@dataclass(frozen=True, slots=True)
class Latest:
    """Executes only the newest chunk."""

    def keeps(self, _horizon: int, /) -> int:
        return 0

    def blend(self, raw: Vector, _timeline: Timeline, _earlier: Sequence[TimedChunk], /) -> Vector:
        return raw


@dataclass(frozen=True, slots=True)
class Weighted:
    """Executes (1 - new) of the present chunk plus `new` of the newest one, at moments for which both have a row."""

    new: float = 0.7
    """Share of the newest chunk."""

    def __post_init__(self) -> None:
        if not isinstance(self.new, int | float) or not 0.0 < self.new <= 1.0:
            raise InvalidArgument(f"must be above 0 and at most 1, got {self.new!r}", field="weighted.new")

    def keeps(self, _horizon: int, /) -> int:
        return 1

    def blend(self, raw: Vector, timeline: Timeline, earlier: Sequence[TimedChunk], /) -> Vector:
        blended = raw.copy()
        for before in earlier[-1:]:
            here, there = overlap(_shift(timeline, before.timeline), len(raw))
            blended[here] = (1.0 - self.new) * before.played[there] + self.new * raw[here]
        return blended


@dataclass(frozen=True, slots=True)
class TemporalEnsemble:
    """Executes the mean of all chunks' rows for a moment, weighted by exp(-coefficient * i), i = 0 the oldest chunk.

    As in ACT (Zhao et al., 2023, arXiv 2304.13705), there with 0.01. Averaged are the newest chunks as the policy gave
    them, at most as many as the horizon has steps, and MAX_ENSEMBLE.
    """

    coefficient: float = 0.01
    """Above 0 older chunks weigh more, below 0 newer ones."""

    def __post_init__(self) -> None:
        value = self.coefficient
        if not isinstance(value, int | float) or not -MAX_COEFFICIENT <= value <= MAX_COEFFICIENT:
            raise InvalidArgument(
                f"must be {-MAX_COEFFICIENT:g} to {MAX_COEFFICIENT:g}, got {value!r}",
                field="temporal_ensemble.coefficient",
            )

    def keeps(self, horizon: int, /) -> int:
        return min(horizon, MAX_ENSEMBLE) - 1

    def blend(self, raw: Vector, timeline: Timeline, earlier: Sequence[TimedChunk], /) -> Vector:
        chunks = [*(before.raw for before in earlier), raw]
        shifts = [*(_shift(timeline, before.timeline) for before in earlier), 0]
        places = [overlap(shift, len(raw)) for shift in shifts]
        has_row = np.zeros((len(chunks), len(raw)), dtype=bool)
        for present, (here, _) in zip(has_row, places, strict=True):
            present[here] = True
        counts = has_row.sum(axis=0)
        weights = np.where(has_row, _relative_weights(has_row.cumsum(axis=0) - 1, counts, self.coefficient), 0.0)
        weights /= weights.sum(axis=0)
        blended = np.zeros_like(raw)
        for chunk, share, (here, there) in zip(chunks, weights, places, strict=True):
            blended[here] += share[here, None] * chunk[there]
        return blended


LATEST = Latest()


def ensemble_weights(count: int, coefficient: float) -> Vector:
    """Weights [count] of the entries for one moment, the oldest first; their sum is 1."""
    weights = _relative_weights(np.arange(count), np.array(count), coefficient)
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def overlap(shift: int, horizon: int) -> tuple[slice, slice]:
    """The rows of a chunk, and those of one captured `shift` steps before, that are for the same moments."""
    first = max(0, -shift)
    last = max(first, min(horizon, horizon - shift))
    return slice(first, last), slice(first + shift, last + shift)


class Blender:
    """Blends each new chunk with the earlier ones of its epoch since the last `restart`.

    A chunk of one action stays unchanged.
    """

    def __init__(self, blending: Blending = LATEST) -> None:
        self._blending = blending
        self._epoch = 0
        self._earlier: list[TimedChunk] = []

    def blended(self, raw: Vector, timeline: Timeline, epoch: int) -> TimedChunk:
        """The chunk as it would be executed if it were accepted; changes nothing."""
        played = raw
        if self._earlier and epoch == self._epoch:
            played = self._blending.blend(raw, timeline, self._earlier)
        for rows in (raw, played):
            rows.setflags(write=False)
        return TimedChunk(timeline, raw, played)

    def accepted(self, chunk: TimedChunk, epoch: int) -> None:
        """Accept a chunk, with which later ones are blended."""
        if epoch != self._epoch:
            self.restart()
        self._epoch = epoch
        keeps = self._blending.keeps(len(chunk.raw)) if len(chunk.raw) > 1 else 0
        self._earlier = [*self._earlier, chunk][-keeps:] if keeps else []

    def restart(self) -> None:
        """Forget all chunks: they are of another episode, instruction or stream, or from before a HOLD."""
        self._earlier = []


def _shift(newest: Timeline, before: Timeline) -> int:
    """Whole steps between the first rows of two chunks, rounded to the nearest."""
    return round((newest.start_ns - before.start_ns) / newest.step_ns)


def _relative_weights(ranks: Vector | np.ndarray, counts: np.ndarray, coefficient: float) -> Vector:
    """exp(-coefficient * rank), scaled so that the largest weight of a moment with `counts` entries is 1."""
    largest = np.maximum(-coefficient * (counts - 1), 0.0)
    return np.asarray(np.exp(-coefficient * ranks - largest), dtype=np.float64)
