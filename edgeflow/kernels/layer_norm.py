"""LayerNorm of a sum: (x, residual [L_Q, E], weight, bias [E], eps) → the norm of x + residual, and x + residual.

The sum is rounded to the dtype of its terms before it is normalised; the norm is computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

AddLayerNorm = Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]


def add_reference(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean, variance, scale and shift written out."""
    total = x + residual
    wide = total.float()
    centred = wide - wide.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (normed * weight.float() + bias.float()).to(x.dtype), total


def add_fused(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum, then torch's own norm."""
    total = x + residual
    return F.layer_norm(total, weight.shape, weight, bias, eps), total
