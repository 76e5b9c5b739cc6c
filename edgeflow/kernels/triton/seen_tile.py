"""One tile of queries over the places that a layout's `Sees` names, for packed attention."""

from __future__ import annotations

import triton
import triton.language as tl

from edgeflow.kernels.triton.attention_tile import fold_values, score_keys


@triton.jit
def attend_seen(
    q, ranges, tree, first, row, live, split, splits, T, keys, values, key_scales, value_scales, stride, scale_stride,
    scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    QUANTISED: tl.constexpr, WIDE: tl.constexpr, TREES: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys that rows see; results and the other arguments are as in `attend_tile`.

    ranges [L_Q, 2, 2], tree, first [L_Q]: of a `Sees`; tree and first only with TREES. row, live [BLOCK_M]: rows of the
    tile, and which of them there are. split, splits: the part of the blocks of keys that this call folds in. T:
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
