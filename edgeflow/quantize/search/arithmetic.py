"""Round to nearest in 4 bits with zero points, per group of G neighbouring inputs (AutoAWQ's formula).

Per group: scale = max(max - min, 1e-5) / 15; zero = clamp(-round(min / scale), 0, 15); code = clamp(round(w / scale) +
zero, 0, 15); value = (code - zero) * scale. Rounding is half to even. All of it happens in the dtype of the weight: the
search works in float32, stored numbers come from float16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST_CODE = 15
SMALLEST_RANGE = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class Integers:
    """A quantised weight. codes, uint8 [N, E], and zeros, uint8 [N, E/G]: 0 to 15; scales, float16 [N, E/G]."""

    codes: Tensor
    zeros: Tensor
    scales: Tensor


def nearest(weight: Tensor, group: int) -> Tensor:
    """The values that a weight takes in 4 bits: [N, E] → [N, E], in the dtype of the weight."""
    groups = weight.reshape(-1, group)
    scale, zero = _grid(groups)
    codes = torch.div(groups, scale).round_().add_(zero).clamp_(0, LARGEST_CODE)
    return codes.sub_(zero).mul_(scale).view(weight.shape)


def integers(weight: Tensor, group: int) -> Integers:
    """The numbers that are stored for a weight [N, E], which is rounded to float16 first, as AutoAWQ does.

    AutoAWQ computes the codes a second time from the dequantised float16 weight. That gives the same codes.
    """
    half = weight.to(torch.float16)
    groups = half.reshape(-1, group)
    scale, zero = _grid(groups)
    codes = torch.div(groups, scale).round_().add_(zero).clamp_(0, LARGEST_CODE)
    rows = len(half)
    return Integers(
        codes.to(torch.uint8).view(half.shape), zero.to(torch.uint8).view(rows, -1), scale.view(rows, -1).clone()
    )


def _grid(groups: Tensor) -> tuple[Tensor, Tensor]:
    """The scale and zero of each group: [n, G] → [n, 1] twice."""
    most, least = groups.amax(1, keepdim=True), groups.amin(1, keepdim=True)
    scale = (most - least).clamp_(min=SMALLEST_RANGE) / LARGEST_CODE
    return scale, (-torch.round(least / scale)).clamp_(0, LARGEST_CODE)
