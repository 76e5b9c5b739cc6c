"""Operators that take each row by itself, float32 inside.

Norms: one program per row, the row in registers. SwiGLU and GeGLU: gate and up are read once, the product is written
once. Greedy choice: two launches without a host copy. The first finds the best of each block of a row, the second the
best of the blocks. Equal logits: the lowest id.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeflow.kernels.triton.launch import cdiv, power_of_two


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
    normed = (value * scale).to(weight.dtype.element_ty).to(tl.float32)
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


@triton.jit
def _adaptive_row(
    x, residual, numbers, of_row, out, eps, stride, E, HAS_X: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Grid [L_Q]. x, residual, out [L_Q, E]; numbers [m, 3, E], conditions `stride` apart; of_row [L_Q]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    kept = column < E
    own = numbers + tl.load(of_row + row) * stride + column
    value = tl.load(residual + row * E + column, mask=kept, other=0.0).to(tl.float32)
    if HAS_X:
        added = tl.load(x + row * E + column, mask=kept, other=0.0).to(tl.float32)
        value += tl.load(own, mask=kept, other=0.0) * added
        rounded = value.to(residual.dtype.element_ty)
        tl.store(residual + row * E + column, rounded, mask=kept)
        value = rounded.to(tl.float32)
    normed = value * tl.rsqrt(tl.sum(value * value) / E + eps)
    normed = normed * tl.load(own + E, mask=kept, other=0.0) + tl.load(own + 2 * E, mask=kept, other=0.0)
    tl.store(out + row * E + column, normed.to(out.dtype.element_ty), mask=kept)


def add_adaptive_norm(
    x: Tensor | None, residual: Tensor, numbers: Tensor, of_row: Tensor, eps: float, *, num_warps: int = 4
) -> tuple[Tensor, Tensor]:
    """The adapted norm of residual + gate * x, and the sum, which replaces the residual. x, residual [L_Q, E],
    contiguous; the numbers of a condition [3, E] as well."""
    out = torch.empty_like(residual)
    rows, width = residual.shape
    if rows:
        given = residual if x is None else x
        sizes = numbers.stride(0), width, x is not None, power_of_two(width)
        _adaptive_row[(rows,)](given, residual, numbers, of_row, out, eps, *sizes, num_warps=num_warps)
    return out, residual


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


@triton.jit
def _gate(gate_up, out, F, GELU: tl.constexpr, BLOCK: tl.constexpr):
    """Grid [L_Q, blocks of F]. gate_up [L_Q, 2F], out [L_Q, F]. GELU: in its tanh form, in place of SiLU."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kept = column < F
    gate = tl.load(gate_up + row * 2 * F + column, mask=kept, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * F + F + column, mask=kept, other=0.0).to(tl.float32)
    bend = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else gate  # sqrt(8 / pi)
    product = gate * tl.sigmoid(bend) * up
    tl.store(out + row * F + column, product.to(out.dtype.element_ty), mask=kept)


def swiglu(gate_up: Tensor, *, block: int = 1024, num_warps: int = 4) -> Tensor:
    """gate_up [L_Q, 2F], contiguous → [L_Q, F]"""
    return _gated(gate_up, False, block, num_warps)


def geglu(gate_up: Tensor, *, block: int = 1024, num_warps: int = 4) -> Tensor:
    """gate_up [L_Q, 2F], contiguous → [L_Q, F]"""
    return _gated(gate_up, True, block, num_warps)


def _gated(gate_up: Tensor, gelu: bool, block: int, num_warps: int) -> Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        _gate[(rows, cdiv(width, block))](gate_up, out, width, gelu, block, num_warps=num_warps)
    return out


@triton.jit
def _best_of_block(logits, best, where, sound, first, stop, V, BLOCK: tl.constexpr):
    """Grid [N, blocks]. logits [N, V]; best, where, sound [N, blocks]: largest logit, its id, whether none is NaN."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    blocks = tl.num_programs(1)
    column = first + block * BLOCK + tl.arange(0, BLOCK)
    kept = column < stop
    value = tl.load(logits + row * V + column, mask=kept, other=-float("inf")).to(tl.float32)
    broken = value != value
    value = tl.where(broken, float("inf"), value)
    largest = tl.max(value, 0)
    chosen = tl.min(tl.where(kept & (value == largest), column, stop), 0)
    tl.store(best + row * blocks + block, largest)
    tl.store(where + row * blocks + block, chosen)
    tl.store(sound + row * blocks + block, tl.max(broken.to(tl.int32), 0) == 0)


@triton.jit
def _best_of_blocks(best, where, sound, ids, finite, blocks, stop, BLOCK: tl.constexpr):
    """Grid [N]. best, where, sound [N, blocks]; ids, finite [N]; BLOCK: power of two that covers `blocks`."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCK)
    kept = block < blocks
    value = tl.load(best + row * blocks + block, mask=kept, other=-float("inf"))
    column = tl.load(where + row * blocks + block, mask=kept, other=stop)
    whole = tl.load(sound + row * blocks + block, mask=kept, other=1).to(tl.int32)
    largest = tl.max(value, 0)
    chosen = tl.min(tl.where(kept & (value == largest), column, stop), 0)
    bounded = (largest < float("inf")) & (largest > -float("inf"))
    tl.store(ids + row, chosen.to(tl.int64))
    tl.store(finite + row, bounded & (tl.min(whole, 0) == 1))


def greedy(logits: Tensor, first: int, stop: int, *, block: int = 4096) -> tuple[Tensor, Tensor]:
    """logits [N, V], contiguous → ids [N] int64 of first .. stop, finite [N] bool."""
    rows, vocabulary = logits.shape
    device = logits.device
    ids = torch.empty(rows, dtype=torch.long, device=device)
    finite = torch.empty(rows, dtype=torch.bool, device=device)
    blocks = cdiv(stop - first, block)
    best = torch.empty(rows, blocks, dtype=torch.float32, device=device)
    where = torch.empty(rows, blocks, dtype=torch.int32, device=device)
    sound = torch.empty(rows, blocks, dtype=torch.bool, device=device)
    if rows:
        _best_of_block[(rows, blocks)](logits, best, where, sound, first, stop, vocabulary, block)
        _best_of_blocks[(rows,)](best, where, sound, ids, finite, blocks, stop, power_of_two(blocks))
    return ids, finite
