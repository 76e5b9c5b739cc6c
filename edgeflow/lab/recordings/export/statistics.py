"""Statistics of a dataset's features, as LeRobot keeps them: per episode, and over all episodes for training.

Images are counted into histograms of their 256 values, so any number of them takes the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edgeflow.lab.recordings.sessions import Pixels

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
KINDS = ("min", "max", "mean", "std", "count", *QUANTILES)
SAMPLED_SIDE = 150
"""Longer side to which large images are thinned out: about this many pixels, at most twice as many."""

FeatureStatistics: TypeAlias = dict[str, npt.NDArray[np.float64] | npt.NDArray[np.int64]]
"""The kinds of KINDS: [size], of images [3, 1, 1] on the scale 0 to 1; `count` [1], the frames counted."""


def vector_statistics(values: npt.NDArray[np.generic]) -> FeatureStatistics:
    """The statistics of a vector's values [frames, size] or of a number's [frames]."""
    values = np.asarray(values, np.float64).reshape(len(values), -1)
    found = np.quantile(values, list(QUANTILES.values()), axis=0, method="inverted_cdf")
    return {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
        "count": np.array([len(values)]),
        **dict(zip(QUANTILES, found, strict=True)),
    }


class ImageStatistics:
    """The statistics of a camera's images, counted as they come."""

    def __init__(self) -> None:
        self._frames = 0
        self._histograms = np.zeros((3, 256), np.int64)

    def add(self, image: Pixels) -> None:
        """Count an image [height, width, 3]; of a large one every n-th row and column."""
        longer = max(image.shape[:2])
        stride = longer // SAMPLED_SIDE if longer >= 2 * SAMPLED_SIDE else 1
        thinned = image[::stride, ::stride]
        for channel, histogram in enumerate(self._histograms):
            histogram += np.bincount(thinned[..., channel].ravel(), minlength=256)
        self._frames += 1

    def result(self) -> FeatureStatistics:
        """The statistics so far, of at least one image."""
        levels = np.arange(256) / 255
        total = self._histograms[0].sum()
        mean = self._histograms @ levels / total
        squares = [histogram @ (levels - middle) ** 2 for histogram, middle in zip(self._histograms, mean, strict=True)]
        per_channel = {
            "min": levels[(self._histograms > 0).argmax(axis=1)],
            "max": levels[255 - (self._histograms[:, ::-1] > 0).argmax(axis=1)],
            "mean": mean,
            "std": np.sqrt(np.array(squares) / total),
        }
        reached = self._histograms.cumsum(axis=1)
        for name, share in QUANTILES.items():
            per_channel[name] = levels[(reached >= share * total).argmax(axis=1)]
        shaped: FeatureStatistics = {name: values.reshape(3, 1, 1) for name, values in per_channel.items()}
        shaped["count"] = np.array([self._frames])
        return shaped


def over_episodes(episodes: Sequence[FeatureStatistics]) -> FeatureStatistics:
    """The statistics of a feature over all episodes; quantiles are the episodes' averages, as LeRobot has them."""
    counts = np.array([each["count"][0] for each in episodes])

    def average(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray(np.average(values, axis=0, weights=counts), np.float64)

    stacked = {kind: np.stack([each[kind] for each in episodes]).astype(np.float64) for kind in KINDS}
    mean = average(stacked["mean"])
    return {
        "min": stacked["min"].min(axis=0),
        "max": stacked["max"].max(axis=0),
        "mean": mean,
        "std": np.sqrt(average(stacked["std"] ** 2 + (stacked["mean"] - mean) ** 2)),
        "count": np.array([counts.sum()]),
        **{name: average(stacked[name]) for name in QUANTILES},
    }


def listed(statistics: Mapping[str, FeatureStatistics]) -> dict[str, dict[str, list[float]]]:
    """Statistics as nested lists, for JSON."""
    return {name: {kind: values.tolist() for kind, values in feature.items()} for name, feature in statistics.items()}
