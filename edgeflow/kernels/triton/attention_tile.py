"""One tile of queries over a run of keys: the online softmax that packed and variable-length attention share."""

from __future__ import annotations

import triton
import triton.language as tl

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
