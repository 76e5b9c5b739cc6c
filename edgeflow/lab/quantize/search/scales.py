"""The scales that AWQ tries: one factor per input channel of some linears, from statistics and a ratio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

STEPS = 20
RATIOS = tuple(step / STEPS for step in range(STEPS))
SMALLEST = 1e-4
EPSILON = 1e-6


class ScaleForm(str, Enum):
    """The formula of a scale. x: s = x^r (AWQ). duo: s = x^r / (w^(1-r) + 1e-4) (AutoAWQ's default)."""

    DUO = "duo"
    X = "x"


@dataclass(frozen=True, slots=True, eq=False)
class ChannelStatistics:
    """Statistics of each input channel, float32 [E]: `inputs`, the mean of |x|; `weights`, the mean size of a weight
    in shares of its group's largest."""

    inputs: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ScaleCandidate:
    """Scales to try [E]."""

    ratio: float | None
    """None for s = 1, which no ratio gives in the form duo."""
    scales: Tensor


def input_means(rows: Tensor) -> Tensor:
    """The mean of |x| over all rows: [T, E] → [E]"""
    return rows.abs().sum(0) / len(rows)


def weight_means(weights: Sequence[Tensor], group: int) -> Tensor:
    """The mean over the rows of all weights [N, E] of |w| / (largest |w| of its group + 1e-6): [E]"""
    stacked = torch.cat(list(weights))
    sizes = stacked.reshape(-1, group).abs()
    return sizes.div_(sizes.amax(1, keepdim=True) + EPSILON).view(stacked.shape).mean(0)


def candidates(form: ScaleForm, statistics: ChannelStatistics, *, identity: bool) -> Iterator[ScaleCandidate]:
    """The scales of each ratio, then s = 1 where asked for. The first ratio of the form x is s = 1 already."""
    for ratio in RATIOS:
        yield ScaleCandidate(ratio, scales_of(form, ratio, statistics))
    if identity and form is ScaleForm.DUO:
        yield ScaleCandidate(None, torch.ones_like(statistics.inputs))


def scales_of(form: ScaleForm, ratio: float, statistics: ChannelStatistics) -> Tensor:
    """The scales of a ratio: [E], float32, divided by sqrt(largest * smallest)."""
    powers = powers_of(form, ratio, statistics)
    return normalised(powers, middle(powers), live=statistics.inputs > 0)


def powers_of(form: ScaleForm, ratio: float, statistics: ChannelStatistics) -> Tensor:
    """x^r, or x^r / (w^(1-r) + 1e-4), and no less than 1e-4: [E]"""
    powers = statistics.inputs.pow(ratio)
    if form is ScaleForm.DUO:
        powers = powers / (statistics.weights.pow(1 - ratio) + SMALLEST)
    return powers.clamp(min=SMALLEST)


def middle(powers: Tensor) -> Tensor:
    """The geometric mean of the largest and the smallest of them."""
    return (powers.max() * powers.min()).sqrt()


def normalised(powers: Tensor, by: Tensor, *, live: Tensor) -> Tensor:
    """The powers divided by a number. live: bool [E], the channels that are not 0 in all calibration rows.

    The other channels keep the scale 1. AutoAWQ counts them in the middle, where they stretch the scales of the live
    ones; here those are brought back to a geometric mean near 1, by a power of two: it leaves every rounding, and so
    every later choice, as in AutoAWQ.
    """
    scales = powers / by
    live = live & scales.isfinite()
    if live.any() and not live.all():
        scales = scales * torch.exp2(-middle(scales[live]).log2().round())
    return torch.where(live, scales, 1.0)
