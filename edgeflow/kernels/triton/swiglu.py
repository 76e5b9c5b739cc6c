"""SwiGLU: gate and up are read once, the product is written once; float32 inside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeflow.kernels.triton.launch import cdiv


@triton.jit
def _gate(gate_up, out, F, BLOCK: tl.constexpr):
    """Grid [L_Q, blocks of F]. gate_up [L_Q, 2F], out [L_Q, F]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kept = column < F
    gate = tl.load(gate_up + row * 2 * F + column, mask=kept, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * F + F + column, mask=kept, other=0.0).to(tl.float32)
    product = gate * tl.sigmoid(gate) * up
    tl.store(out + row * F + column, product.to(out.dtype.element_ty), mask=kept)


def swiglu(gate_up: Tensor, *, block: int = 1024, num_warps: int = 4) -> Tensor:
    """gate_up [L_Q, 2F], contiguous → [L_Q, F]"""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        _gate[(rows, cdiv(width, block))](gate_up, out, width, block, num_warps=num_warps)
    return out
