"""One tile of queries over a run of keys of a slot of 4 bits (kernels/kv/int4.py), for packed attention.

The keys that no row of the tile sees in 4 bits are read as they are, and the others as codes. Where rows differ, the
places between are read both ways, each time for the rows that see them so.
"""

from __future__ import annotations

import triton
import triton.language as tl

from edgeflow.kernels.kv.int4 import GROUP
from edgeflow.kernels.triton.attention_tile import score_keys, weigh

PLACES = tl.constexpr(GROUP)
"""Positions in a group, and in a block of keys."""


@triton.jit
def attend_four_bits(
    q, position, first, low, high, slot, head, keys, values, key_steps, value_steps, key_offsets, value_offsets, exact,
    T, scale,
    KH: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Online softmax over keys low .. high-1 of one head of a slot; results, q and position as in `attend_tile`.

    first: the lowest position of a row. keys .. exact: as in an `Int4Layer`. low and high: multiples of PLACES, or the
    end of what the tile sees.
    """
    groups = tl.cdiv(T, PLACES)
    keys += (slot * T * KH + head) * (D // 2)
    values += (slot * T * KH + head) * (D // 2)
    value_steps += slot * T * KH + head
    value_offsets += slot * T * KH + head
    key_steps += (slot * groups * KH + head) * D
    key_offsets += (slot * groups * KH + head) * D
    exact += (slot * groups * PLACES * KH + head) * D
    narrow = (position + 1) // PLACES * PLACES  # [BLOCK_M]: keys that a row sees in 4 bits
    largest = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(low, tl.minimum(high, tl.max(narrow, 0)), PLACES):
        place = start + tl.arange(0, PLACES)
        inside = place < high
        score = _score_codes(
            q, place, inside, keys, start // PLACES, steps=key_steps, offsets=key_offsets, scale=scale,
            KH=KH, D=D, BLOCK_D=BLOCK_D, WIDE=WIDE,
        )  # fmt: skip
        seen = place[None, :] < narrow[:, None]
        out, largest, total = _fold_codes(
            tl.where(seen, score, -float("inf")), q, place, inside, values, steps=value_steps, offsets=value_offsets,
            out=out, largest=largest, total=total, KH=KH, D=D, BLOCK_D=BLOCK_D, WIDE=WIDE,
        )  # fmt: skip
    for start in tl.range(tl.maximum(low, (first + 1) // PLACES * PLACES), high, PLACES, num_stages=1):
        place = start + tl.arange(0, PLACES)
        inside = place < high
        score = score_keys(q, place, inside, exact, exact, KH * D, KH, scale, D, BLOCK_D, False, WIDE)
        seen = (place[None, :] >= narrow[:, None]) & (place[None, :] <= position[:, None]) & inside[None, :]
        out, largest, total = _fold_codes(
            tl.where(seen, score, -float("inf")), q, place, inside, values, steps=value_steps, offsets=value_offsets,
            out=out, largest=largest, total=total, KH=KH, D=D, BLOCK_D=BLOCK_D, WIDE=WIDE,
        )  # fmt: skip
    return out, largest, total


@triton.jit
def _score_codes(
    q, place, inside, keys, group, steps, offsets, scale,
    KH: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """As `score_keys`, of a group. The products that numbers are made of are exact in float32."""
    width = tl.arange(0, BLOCK_D)
    line = group * KH * D + width
    step = _as_float(tl.load(steps + line, mask=width < D, other=0))
    least = tl.load(offsets + line, mask=width < D, other=0).to(tl.float32) * step
    k = _codes(keys, place, inside, KH=KH, D=D, BLOCK_D=BLOCK_D) * step[None, :] + least[None, :]  # [PLACES, BLOCK_D]
    if not WIDE:
        k = k.to(q.dtype)
    return tl.dot(q, tl.trans(k), input_precision="ieee") * scale


@triton.jit
def _fold_codes(
    score, q, place, inside, values, steps, offsets, out, largest, total,
    KH: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """As `fold_values`, with a grid per position: codes are multiplied as they are, and offsets added apart."""
    weight, fade, largest, total = weigh(score, largest, total)
    weight *= _as_float(tl.load(steps + place * KH, mask=inside, other=0))[None, :]
    v = _codes(values, place, inside, KH=KH, D=D, BLOCK_D=BLOCK_D)  # [PLACES, BLOCK_D]
    if not WIDE:
        weight = weight.to(q.dtype)
        v = v.to(q.dtype)
    offset = tl.load(offsets + place * KH, mask=inside, other=0).to(tl.float32)
    least = tl.sum(weight.to(tl.float32) * offset[None, :], 1)  # [BLOCK_M]
    out = out * fade[:, None] + tl.dot(weight, v, input_precision="ieee") + least[:, None]
    return out, largest, total


@triton.jit
def _codes(codes, place, inside, KH: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """The codes of keys or values at the places inside [PLACES, BLOCK_D], float32. Each byte is read twice."""
    HALF: tl.constexpr = D // 2
    width = tl.arange(0, BLOCK_D)
    line = place.to(tl.int64) * (KH * HALF)
    kept = inside[:, None] & (width < D)[None, :]
    both = tl.load(codes + line[:, None] + (width % HALF)[None, :], mask=kept, other=0).to(tl.int32)
    return (tl.where((width < HALF)[None, :], both, both >> 4) & 15).to(tl.float32)


@triton.jit
def _as_float(step):
    """The bits of a bfloat16, in int16, as a float32."""
    return (step.to(tl.int32) << 16).to(tl.float32, bitcast=True)
