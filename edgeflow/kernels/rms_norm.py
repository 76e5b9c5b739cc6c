"""RMSNorm: y = x / sqrt(mean(x²) + eps) * weight, over the last dimension. x [L_Q, E] or [L_Q, n, E], weight [E].

Add and norm: (x, residual [L_Q, E], weight, eps) → the norm of x + residual, and x + residual rounded to their dtype.
The caller gives both inputs away: an implementation may write its results over them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

RmsNorm = Callable[[Tensor, Tensor, float], Tensor]
AddRmsNorm = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm in float32, rounded once to the dtype of x before the weight, as Llama does."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def fused(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """torch's own operator."""
    return F.rms_norm(x, weight.shape, weight, eps)


def add_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum, then its norm."""
    total = x + residual
    return reference(total, weight, eps), total


def add_fused(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum in place of the residual, then torch's own norm."""
    total = residual.add_(x)
    return fused(total, weight, eps), total
