"""RMSNorm: y = x / sqrt(mean(x²) + eps) * weight, over the last dimension. x [L_Q, E], weight [E]."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

RmsNorm = Callable[[Tensor, Tensor, float], Tensor]


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In float32, rounded once to the dtype of x before the weight, as Llama does."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def fused(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """torch's own operator."""
    return F.rms_norm(x, weight.shape, weight, eps)
