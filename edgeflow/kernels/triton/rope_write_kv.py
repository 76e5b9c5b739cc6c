"""Fused RoPE and KV write: queries to their tensor, keys and values straight into their slots, nothing in between.

One program per row and block of heads. Cosines and sines come gathered per row, so that plain and M-RoPE positions are
the same to it; the pairs are half-split (NeoX).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeflow.kernels.kv.formats import DenseLayer, Pair, ScaledLayer
from edgeflow.kernels.rope_write_kv import RowPlaces
from edgeflow.kernels.triton.fp8 import to_nearest
from edgeflow.kernels.triton.launch import INTERPRETED, cdiv, power_of_two

AS_IT_IS, WHOLE, E4M3, E4M3_ROUNDED = 0, 1, 2, 3
"""How keys and values are stored: in the dtype of the slots; with scales, as int8 or e4m3; as e4m3 that is rounded
before the cast."""


@triton.jit
def _turn(
    qkv, cos, sin, flat, q_out, k_slots, v_slots, k_scales, v_scales,
    H: tl.constexpr, KH: tl.constexpr, HALF: tl.constexpr,
    FORM: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    D: tl.constexpr = 2 * HALF
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)  # queries, keys, values
    pair = tl.arange(0, BLOCK_HALF)
    first = pair
    second = pair + HALF
    inside = (head < H + 2 * KH)[:, None] & (pair < HALF)[None, :]
    source = qkv + row * (H + 2 * KH) * D + head[:, None] * D
    a = tl.load(source + first[None, :], mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + second[None, :], mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + row * D + pair, mask=pair < HALF, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + row * HALF + pair, mask=pair < HALF, other=0.0).to(tl.float32)[None, :]
    turns = (head < H + KH)[:, None]
    turned_a = tl.where(turns, a * c - b * s, a)
    turned_b = tl.where(turns, b * c + a * s, b)

    is_query = inside & (head < H)[:, None]
    target = q_out + row * H * D + head[:, None] * D
    tl.store(target + first[None, :], turned_a.to(q_out.dtype.element_ty), mask=is_query)
    tl.store(target + second[None, :], turned_b.to(q_out.dtype.element_ty), mask=is_query)

    place = tl.load(flat + row)
    is_key = (head >= H) & (head < H + KH)
    is_value = (head >= H + KH) & (head < H + 2 * KH)
    if FORM:
        largest = tl.maximum(tl.max(tl.abs(turned_a), 1), tl.max(tl.abs(turned_b), 1))
        scale = largest / (127.0 if FORM == 1 else 448.0)
        safe = tl.where(scale == 0.0, 1.0, scale)
        turned_a = turned_a / safe[:, None]
        turned_b = turned_b / safe[:, None]
        if FORM == 1:
            turned_a = tl.floor(turned_a + 0.5)
            turned_b = tl.floor(turned_b + 0.5)
        if FORM == 3:
            turned_a = to_nearest(turned_a)
            turned_b = to_nearest(turned_b)
        tl.store(k_scales + place * KH + head - H, scale, mask=is_key)
        tl.store(v_scales + place * KH + head - H - KH, scale, mask=is_value)
    keys = k_slots + place * KH * D + (head - H)[:, None] * D
    kept = inside & is_key[:, None]
    tl.store(keys + first[None, :], turned_a.to(k_slots.dtype.element_ty), mask=kept)
    tl.store(keys + second[None, :], turned_b.to(k_slots.dtype.element_ty), mask=kept)
    values = v_slots + place * KH * D + (head - H - KH)[:, None] * D
    kept = inside & is_value[:, None]
    tl.store(values + first[None, :], turned_a.to(v_slots.dtype.element_ty), mask=kept)
    tl.store(values + second[None, :], turned_b.to(v_slots.dtype.element_ty), mask=kept)


def rope_write_kv(
    qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: DenseLayer, *, block_h: int = 16
) -> Tensor:
    """Half-split pairs (i, i + D/2)."""
    return _launch(qkv, heads, kv_heads, rows, slots=(layer.keys, layer.values), scales=None, block_h=block_h)


def rope_write_kv_scaled(
    qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: ScaledLayer, *, block_h: int = 16
) -> Tensor:
    """Half-split pairs into slots of int8 or e4m3."""
    scales = layer.key_scales, layer.value_scales
    return _launch(qkv, heads, kv_heads, rows, slots=(layer.keys, layer.values), scales=scales, block_h=block_h)


def _launch(
    qkv: Tensor,
    heads: int,
    kv_heads: int,
    rows: RowPlaces,
    *,
    slots: Pair,
    scales: Pair | None,
    block_h: int,
) -> Tensor:
    count, width = qkv.shape[0], slots[0].shape[-1]
    q = torch.empty(count, heads, width, dtype=qkv.dtype, device=qkv.device)
    if count:
        block_h = min(block_h, power_of_two(heads + 2 * kv_heads))
        _turn[(count, cdiv(heads + 2 * kv_heads, block_h))](
            qkv, rows.cos, rows.sin, rows.flat, q, *slots, *(scales or slots), heads, kv_heads, width // 2,
            _form(slots[0], scales), block_h, power_of_two(width // 2), num_warps=4,
        )  # fmt: skip
    return q


def _form(slots: Tensor, scales: Pair | None) -> int:
    if scales is None:
        return AS_IT_IS
    if not slots.is_floating_point():
        return WHOLE
    return E4M3_ROUNDED if INTERPRETED else E4M3
