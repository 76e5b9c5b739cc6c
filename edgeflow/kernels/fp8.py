"""Rows in FP8 (e4m3): each with one scale, largest magnitude / 448, in float32; number = fp8 * scale.

(x [m, E]) → fp8 [m, E], scale [m, 1] float32. Rounded to the nearest, ties to even; a row of zeros has scale 0; NaN and
infinities come out as NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LARGEST = 448.0
FP8 = torch.float8_e4m3fn
QuantiseRows = Callable[[Tensor], tuple[Tensor, Tensor]]


def reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """The reference of `QuantiseRows`: [n, E] → e4m3 [n, E] and float32 scales [n, 1]."""
    scale = x.float().abs().amax(-1, keepdim=True) / LARGEST
    return (x.float() / torch.where(scale == 0, 1.0, scale)).to(FP8), scale


def dequantised(rows: Tensor, scale: Tensor) -> Tensor:
    """[m, E] float32"""
    return rows.float() * scale
