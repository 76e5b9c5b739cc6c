"""Operators that take each row by itself: norms, gates of MLPs and the greedy choice of a token."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

RmsNorm = Callable[[Tensor, Tensor, float], Tensor]
"""y = x / sqrt(mean(x²) + eps) * weight, over the last dimension. x [L_Q, E] or [L_Q, n, E], weight [E]. Where the
weight is in float32 and the rows are not, y is rounded once, after the weight (Gemma)."""
AddRmsNorm = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""(x, residual [L_Q, E], weight, eps) → the norm of x + residual, and x + residual rounded to their dtype. The caller
gives both inputs away: an implementation may write its results over them."""
AddLayerNorm = Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""(x, residual [L_Q, E], weight, bias [E], eps) → the norm of x + residual, and x + residual. The sum is rounded to the
dtype of its terms before it is normalised; the norm is computed in float32 and rounded once."""
AddAdaptiveNorm = Callable[[Tensor | None, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""(x, residual [L_Q, E], numbers [m, 3, E] float32, of_row [L_Q] int64, eps) → the rows of residual + gate * x, normed
and with their factor and shift, and that sum. numbers: gate, factor and shift of m conditions; of_row: the condition of
each row. x None adds nothing. Computed in float32, sum and result rounded once each. x and residual are given away."""
GatedUnit = Callable[[Tensor], Tensor]
"""silu(gate) * up (SwiGLU), or with the tanh form of GELU (GeGLU). gate_up [L_Q, 2F] has gate and up side by side;
out [L_Q, F]."""
Greedy = Callable[[Tensor, int, int], tuple[Tensor, Tensor]]
"""(logits [N, V], first, stop) → ids [N] int64, the index of the largest of columns first .. stop-1, the lowest of
equals; finite [N] bool: that logit is finite and no logit of the slice is NaN. Both stay on the device."""


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm in float32, rounded to the dtype of the weight before it, as Llama does."""
    wide = x.float()
    return (weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(weight.dtype)).to(x.dtype)


def rms_norm_fused(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """torch's own operator."""
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum, then its norm."""
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


def add_rms_norm_fused(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum in place of the residual, then torch's own norm."""
    total = residual.add_(x)
    return rms_norm_fused(total, weight, eps), total


def add_adaptive_norm_reference(
    x: Tensor | None, residual: Tensor, numbers: Tensor, of_row: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Row by row numbers, every step written out."""
    gate, factor, shift = numbers[of_row].unbind(1)
    total = residual if x is None else (residual.float() + gate * x.float()).to(residual.dtype)
    wide = total.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed * factor + shift).to(residual.dtype), total


def add_adaptive_norm_fused(
    x: Tensor | None, residual: Tensor, numbers: Tensor, of_row: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The sum in place of the residual, torch's own norm, then factor and shift in one operator."""
    gate, factor, shift = numbers.index_select(0, of_row).unbind(1)
    if x is not None:
        residual.add_(gate.mul_(x))
    normed = F.rms_norm(residual.float(), residual.shape[-1:], None, eps)
    return torch.addcmul(shift, normed, factor).to(residual.dtype), residual


def add_layer_norm_reference(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Mean, variance, scale and shift written out."""
    total = x + residual
    wide = total.float()
    centred = wide - wide.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (normed * weight.float() + bias.float()).to(x.dtype), total


def add_layer_norm_fused(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The sum, then torch's own norm."""
    total = x + residual
    return F.layer_norm(total, weight.shape, weight, bias, eps), total


def swiglu_reference(gate_up: Tensor) -> Tensor:
    """The formula."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * gate.sigmoid() * up


def swiglu_fused(gate_up: Tensor) -> Tensor:
    """torch's SiLU, then the product in place."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def geglu_reference(gate_up: Tensor) -> Tensor:
    """The formula."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    bend = torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))
    return (0.5 * gate * (1 + bend) * up).to(gate_up.dtype)


def geglu_fused(gate_up: Tensor) -> Tensor:
    """torch's GELU, then the product in place."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)


def greedy_reference(logits: Tensor, first: int, stop: int) -> tuple[Tensor, Tensor]:
    """Row by row; NaN counts as the largest."""
    ids, finite = [], []
    for row in logits[:, first:stop].float().cpu():
        wide = row.nan_to_num(torch.inf, torch.inf, -torch.inf)
        ids.append(first + int((wide == wide.max()).nonzero()[0]))
        finite.append(bool(row.max().isfinite()))
    return torch.tensor(ids, device=logits.device, dtype=torch.long), torch.tensor(finite, device=logits.device).bool()


def greedy_reduced(logits: Tensor, first: int, stop: int) -> tuple[Tensor, Tensor]:
    """torch's own maximum, which propagates NaN."""
    best, ids = logits[:, first:stop].max(dim=-1)
    return (ids + first if first else ids), best.isfinite()
