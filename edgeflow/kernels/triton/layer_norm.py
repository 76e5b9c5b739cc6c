"""LayerNorm of a sum: one program per row, the row in registers, float32 inside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeflow.kernels.triton.launch import power_of_two


@triton.jit
def _add_norm_row(x, residual, weight, bias, out, total, eps, E, BLOCK: tl.constexpr):
    """Grid [L_Q]. x, residual, out, total [L_Q, E]; weight, bias [E]; BLOCK: power of two that covers E."""
    row = tl.program_id(0).to(tl.int64) * E
    column = tl.arange(0, BLOCK)
    kept = column < E
    value = tl.load(x + row + column, mask=kept, other=0.0).to(tl.float32)
    value += tl.load(residual + row + column, mask=kept, other=0.0).to(tl.float32)
    rounded = value.to(total.dtype.element_ty)  # [BLOCK]
    tl.store(total + row + column, rounded, mask=kept)
    value = rounded.to(tl.float32)
    centred = tl.where(kept, value - tl.sum(value) / E, 0.0)
    normed = centred * tl.rsqrt(tl.sum(centred * centred) / E + eps)
    scaled = normed * tl.load(weight + column, mask=kept, other=0.0).to(tl.float32)
    scaled += tl.load(bias + column, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + row + column, scaled.to(out.dtype.element_ty), mask=kept)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, *, num_warps: int = 4
) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, and the sum. x, residual [L_Q, E], contiguous."""
    x, residual = x.contiguous(), residual.contiguous()
    out, total = torch.empty_like(x), torch.empty_like(x)
    rows, width = x.shape
    if rows:
        _add_norm_row[(rows,)](
            x, residual, weight, bias, out, total, eps, width, power_of_two(width), num_warps=num_warps
        )
    return out, total
