"""One tile of queries: the online softmax that packed and variable-length attention share.

`attend_tile` takes a run of keys, `attend_seen` the places that a layout's `Visibility` names, `attend_four_bits` a
slot of 4 bits (kernels/kv/int4.py): keys that no row of the tile sees in 4 bits are read as they are, and the others as
codes. Where rows differ, the places between are read both ways, each time for the rows that see them so.
"""

from __future__ import annotations

import triton
import triton.language as tl

from edgeflow.kernels.kv.int4 import GROUP

LOG2_E = 1.4426950408889634


@triton.jit
def attend_tile(
    q, position, keys, values, key_scales, value_scales, low, high, stride, scale_stride, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    QUANTISED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Online softmax over keys low .. high-1 of one head.

    Returns weighted values [BLOCK_M, BLOCK_D], largest score [BLOCK_M] and sum of weights [BLOCK_M], all float32.
    q [BLOCK_M, BLOCK_D], zero beyond D; position [BLOCK_M]: the last key that each query sees. keys, values: pointers
    to key 0 of the head, keys `stride` numbers apart; key_scales, value_scales likewise, where numbers have scales
    (QUANTISED). scale includes log2(e), so that exp2 serves. WIDE: products in float32.
    """
    largest = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(low, high, BLOCK_N):
        place = start + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        inside = place < high
        score = score_keys(q, place, inside, keys, key_scales, stride, scale_stride, scale, D, BLOCK_D, QUANTISED, WIDE)
        seen = inside[None, :] & (place[None, :] <= position[:, None])
        out, largest, total = fold_values(
            tl.where(seen, score, -float("inf")), q, place, inside, out, largest, total, values, value_scales,
            stride, scale_stride, D, BLOCK_D, QUANTISED, WIDE,
        )  # fmt: skip
    return out, largest, total


@triton.jit
def score_keys(
    q, place, inside, keys, key_scales, stride, scale_stride, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, QUANTISED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Scores [BLOCK_M, BLOCK_N] of the keys at place [BLOCK_N], of which those inside are read."""
    width = tl.arange(0, BLOCK_D)
    offset = place.to(tl.int64) * stride
    kept = inside[:, None] & (width < D)[None, :]
    k = tl.load(keys + offset[:, None] + width[None, :], mask=kept, other=0.0)  # [BLOCK_N, BLOCK_D]
    if WIDE:
        k = k.to(tl.float32)
    else:
        k = k.to(q.dtype)
    score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if QUANTISED:
        score *= tl.load(key_scales + place * scale_stride, mask=inside, other=0.0).to(tl.float32)[None, :]
    return score


@triton.jit
def fold_values(
    score, q, place, inside, out, largest, total, values, value_scales, stride, scale_stride,
    D: tl.constexpr, BLOCK_D: tl.constexpr, QUANTISED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Weighted values, largest score and sum of weights with these keys. score: -inf where a query does not see one."""
    weight, fade, largest, total = weigh(score, largest, total)
    width = tl.arange(0, BLOCK_D)
    offset = place.to(tl.int64) * stride
    kept = inside[:, None] & (width < D)[None, :]
    v = tl.load(values + offset[:, None] + width[None, :], mask=kept, other=0.0)  # [BLOCK_N, BLOCK_D]
    if QUANTISED:
        weight *= tl.load(value_scales + place * scale_stride, mask=inside, other=0.0).to(tl.float32)[None, :]
    if WIDE:
        v = v.to(tl.float32)
    else:
        weight = weight.to(q.dtype)
        v = v.to(q.dtype)
    out = out * fade[:, None] + tl.dot(weight, v, input_precision="ieee")
    return out, largest, total


@triton.jit
def weigh(score, largest, total):
    """Weights [BLOCK_M, BLOCK_N] of these keys, what the sums so far are to be multiplied by [BLOCK_M], and the largest
    score and the sum of weights with these keys."""
    new_largest = tl.maximum(largest, tl.max(score, 1))
    anchor = tl.where(new_largest == -float("inf"), 0.0, new_largest)  # the row has seen no key yet
    weight = tl.exp2(score - anchor[:, None])
    fade = tl.exp2(largest - anchor)
    return weight, fade, new_largest, total * fade + tl.sum(weight, 1)


@triton.jit
def attend_seen(
    q, ranges, tree, first, row, live, split, splits, T, keys, values, key_scales, value_scales, stride, scale_stride,
    scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    QUANTISED: tl.constexpr, WIDE: tl.constexpr, TREES: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys that rows see; results and the other arguments are as in `attend_tile`.

    ranges [L_Q, 2, 2], tree, first [L_Q]: of a `Visibility`; tree and first only with TREES. row, live [BLOCK_M]: rows
    of the tile, and which of them there are. split, splits: the part of the blocks of keys that this call folds in. T:
    positions of a slot.

    Keys are read within the hulls of the first ranges, and of the second ranges with the bits. What lies outside both,
    between the sinks and a window, is skipped.
    """
    line = ranges + row * 4
    start = tl.load(line, mask=live, other=0).to(tl.int32)
    stop = tl.load(line + 1, mask=live, other=0).to(tl.int32)
    later_start = tl.load(line + 2, mask=live, other=0).to(tl.int32)
    later_stop = tl.load(line + 3, mask=live, other=0).to(tl.int32)
    one_low = tl.min(tl.where(start < stop, start, T), 0)
    one_high = tl.max(tl.where(start < stop, stop, 0), 0)
    two_low = tl.min(tl.where(later_start < later_stop, later_start, T), 0)
    two_high = tl.max(tl.where(later_start < later_stop, later_stop, 0), 0)
    if TREES:
        bits = tl.load(tree + row, mask=live, other=0)
        root = tl.load(first + row, mask=live, other=0).to(tl.int32)
        two_low = tl.minimum(two_low, tl.min(tl.where(bits != 0, root, T), 0))
        two_high = tl.maximum(two_high, tl.max(tl.where(bits != 0, root + _length(bits), 0), 0))
        bits_low = bits.to(tl.uint32)  # rows 0 .. 31
        bits_high = (bits >> 32).to(tl.uint32)
    low = tl.minimum(one_low, two_low)
    high = tl.where(one_low <= two_low, one_high, two_high)
    next_low = tl.maximum(tl.maximum(one_low, two_low), high)
    next_high = tl.where(one_low <= two_low, two_high, one_high)
    blocks = tl.cdiv(tl.maximum(high - low, 0), BLOCK_N)
    both = blocks + tl.cdiv(tl.maximum(next_high - next_low, 0), BLOCK_N)
    share = tl.cdiv(both, splits)

    largest = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for block in range(split * share, tl.minimum(split * share + share, both)):
        begin = tl.where(block < blocks, low + block * BLOCK_N, next_low + (block - blocks) * BLOCK_N)
        place = begin + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        inside = place < tl.where(block < blocks, high, next_high)
        score = score_keys(q, place, inside, keys, key_scales, stride, scale_stride, scale, D, BLOCK_D, QUANTISED, WIDE)
        seen = (place[None, :] >= start[:, None]) & (place[None, :] < stop[:, None])
        seen |= (place[None, :] >= later_start[:, None]) & (place[None, :] < later_stop[:, None])
        if TREES:
            bit = place[None, :] - root[:, None]
            half = tl.where(bit < 32, bits_low[:, None], bits_high[:, None])
            seen |= (bit >= 0) & (bit < 64) & (((half >> (bit & 31).to(tl.uint32)) & 1) == 1)
        out, largest, total = fold_values(
            tl.where(inside[None, :] & seen, score, -float("inf")), q, place, inside, out, largest, total, values,
            value_scales, stride, scale_stride, D, BLOCK_D, QUANTISED, WIDE,
        )  # fmt: skip
    return out, largest, total


@triton.jit
def _length(bits):
    """The number of bits up to the highest one: int32"""
    length = tl.zeros_like(bits)
    for power in tl.static_range(6):
        longer = (bits >> (32 >> power)) != 0
        length += tl.where(longer, 32 >> power, 0)
        bits = tl.where(longer, bits >> (32 >> power), bits)
    return (length + bits).to(tl.int32)


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
