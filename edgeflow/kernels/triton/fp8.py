"""Rows in FP8, one program per row: its largest magnitude, then its numbers, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeflow.kernels.linear import Fp8
from edgeflow.kernels.triton.launch import INTERPRETED, power_of_two
from edgeflow.kernels.weights import E4M3, Fp8Weight


@triton.jit
def to_nearest(value):
    """float32 to the nearest number of e4m3, ties to even, still in float32: the interpreter's own cast rounds wrongly.

    Three bits of mantissa are kept; below 2^-6 multiples of 2^-9, which adding and taking away 1.5 * 2^14 leaves.
    """
    bits = value.to(tl.int32, bitcast=True)
    kept = (bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF
    small = (value + 24576.0) - 24576.0
    return tl.where(tl.abs(value) < 0.015625, small, kept.to(tl.float32, bitcast=True))


@triton.jit
def _quantise_row(x, out, scales, stride, E, BLOCK: tl.constexpr, NEAREST: tl.constexpr):
    """Grid [m]. x [m, E] with rows `stride` apart, out [m, E], scales [m, 1]; BLOCK: power of two that covers E."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    kept = column < E
    value = tl.load(x + row * stride + column, mask=kept, other=0.0).to(tl.float32)
    scale = tl.max(tl.abs(value), 0) / 448.0
    value = value / tl.where(scale == 0.0, 1.0, scale)
    if NEAREST:
        value = to_nearest(value)
    tl.store(out + row * E + column, value.to(out.dtype.element_ty), mask=kept)
    tl.store(scales + row, scale)


def quantise_rows(x: Tensor, *, num_warps: int = 8) -> tuple[Tensor, Tensor]:
    """x [m, E], its last dimension contiguous → fp8 [m, E], scale [m, 1]"""
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=E4M3, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    if rows:
        block = power_of_two(width)
        _quantise_row[(rows,)](x, out, scales, x.stride(0), width, block, INTERPRETED, num_warps=num_warps)
    return out, scales


def linear(weight: Fp8Weight, bias: Tensor | None) -> Fp8:
    """An FP8 linear whose rows this kernel quantises."""
    return Fp8(weight, bias, quantise_rows)
