"""Variable-length attention that is not causal: one program per tile of queries, head and sequence."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeflow.kernels.triton.attention_tile import LOG2_E, attend_tile
from edgeflow.kernels.triton.launch import INTERPRETED, cdiv, power_of_two, warps_of
from edgeflow.kernels.varlen_attention import Sequences


@triton.jit
def _attend_sequence(
    q, k, v, starts, out, scale,
    q_row: tl.constexpr, q_head: tl.constexpr, kv_row: tl.constexpr, kv_head: tl.constexpr,
    out_row: tl.constexpr, out_head: tl.constexpr, D: tl.constexpr,  # known strides: loads of 16 bytes at any width
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Grid [tiles of the longest sequence, H, N]. q, k, v, out [L, H, D] with strides of a row and of a head;
    starts [N + 1]."""
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    first = tl.load(starts + sequence).to(tl.int64)
    length = (tl.load(starts + sequence + 1) - first).to(tl.int32)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M], within the sequence
    width = tl.arange(0, BLOCK_D)
    kept = (row < length)[:, None] & (width < D)[None, :]
    if tl.program_id(0) * BLOCK_M < length:
        place = (first + row)[:, None]
        queries = tl.load(q + place * q_row + head * q_head + width[None, :], mask=kept, other=0.0)
        if WIDE:
            queries = queries.to(tl.float32)
        everything = tl.zeros([BLOCK_M], tl.int32) + length
        keys = k + first * kv_row + head * kv_head
        values = v + first * kv_row + head * kv_head
        summed, _, total = attend_tile(
            queries, everything, keys, values, keys, values, 0, length, kv_row, 1, scale,
            D, BLOCK_M, BLOCK_N, BLOCK_D, False, WIDE,
        )  # fmt: skip
        result = summed / total[:, None]
        tl.store(out + place * out_row + head * out_head + width[None, :], result.to(out.dtype.element_ty), mask=kept)


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sequences: Sequences,
    *,
    block_m: int = 64,
    block_n: int = 64,
    num_warps: int = 0,
    num_stages: int = 2,
) -> Tensor:
    """q, k, v [L, H, D] → [L, H, D]. num_warps 0: by the width of a head."""
    rows, heads, width = q.shape
    if k.stride() != v.stride():
        k, v = k.contiguous(), v.contiguous()
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if rows:
        block_n = min(block_n, 32) if width > 128 else block_n
        wide = INTERPRETED and q.dtype == torch.bfloat16
        starts = sequences.starts
        _attend_sequence[(cdiv(sequences.longest, block_m), heads, len(sequences.lengths))](
            q, k, v, starts, out, LOG2_E / math.sqrt(width), *q.stride()[:2], *k.stride()[:2], *out.stride()[:2],
            width, block_m, block_n, power_of_two(width), wide,
            num_warps=num_warps or warps_of(width), num_stages=num_stages,
        )  # fmt: skip
    return out
