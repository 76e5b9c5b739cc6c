"""RMSNorm, and RMSNorm of a sum: one program per row, the row in registers, float32 inside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeflow.kernels.triton.launch import power_of_two


@triton.jit
def _norm_row(
    x, residual, weight, out, total, eps, inner, stride_outer, stride_inner, E,
    HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    kept = column < E
    source = x + (row // inner) * stride_outer + (row % inner) * stride_inner
    value = tl.load(source + column, mask=kept, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        value += tl.load(residual + row * E + column, mask=kept, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + row * E + column, rounded, mask=kept)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value) / E + eps)
    normed = (value * scale).to(out.dtype.element_ty).to(tl.float32)
    scaled = normed * tl.load(weight + column, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + row * E + column, scaled.to(out.dtype.element_ty), mask=kept)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, num_warps: int = 4) -> Tensor:
    """x [L_Q, E] or [L_Q, n, E], its last dimension contiguous."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    outer = x if x.dim() == 3 else x[:, None]
    _launch(outer, out, weight, eps, out=out, total=out, add=False, num_warps=num_warps)
    return out


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, num_warps: int = 4
) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, and the sum, which replaces the residual. x, residual [L_Q, E], residual contiguous."""
    out = torch.empty_like(residual)
    _launch(x[:, None], residual, weight, eps, out=out, total=residual, add=True, num_warps=num_warps)
    return out, residual


def _launch(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, out: Tensor, total: Tensor, add: bool, num_warps: int
) -> None:
    rows, width = x.shape[0] * x.shape[1], x.shape[2]
    if rows:
        strides = x.stride(0), x.stride(1)
        block = power_of_two(width)
        _norm_row[(rows,)](
            x, residual, weight, out, total, eps, x.shape[1], *strides, width, add, block, num_warps=num_warps
        )
