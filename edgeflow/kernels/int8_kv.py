"""KV slots in int8: written with RoPE, read inside attention.

A key or value head of one position is a row of D numbers with one scale: largest magnitude / 127, in float32;
number = int8 * scale. slots: keys, values [S, T, KH, D] int8; scales: theirs [S, T, KH] float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from edgeflow.kernels import rope_write_kv
from edgeflow.kernels.kv import KVSlots, Pair
from edgeflow.kernels.layout import PackedLayout
from edgeflow.kernels.packed_attention import row_by_row, slots_in_place
from edgeflow.kernels.rope_write_kv import RopeWriteKV, RowPlaces

RopeWriteInt8 = Callable[[Tensor, int, int, RowPlaces, Pair, Pair], Tensor]
Int8Attend = Callable[[Tensor, Pair, Pair], Tensor]
PackedAttentionInt8 = Callable[[PackedLayout, KVSlots], Int8Attend]


def quantised(rows: Tensor) -> Pair:
    """[.., D] → int8 [.., D], float32 [..]; halves are rounded up, a row of zeros has scale 0."""
    scale = rows.float().abs().amax(-1) / 127
    steps = rows.float() / torch.where(scale == 0, 1.0, scale)[..., None]
    return (steps + 0.5).floor().to(torch.int8), scale


def write(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, slots: Pair, scales: Pair) -> Tensor:
    """The plain write into temporary rows, which are then quantised into their slots."""
    return _written(rope_write_kv.reference, qkv, heads, kv_heads, rows, slots=slots, scales=scales)


def write_indexed(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, slots: Pair, scales: Pair) -> Tensor:
    """All rows turn together."""
    return _written(rope_write_kv.indexed, qkv, heads, kv_heads, rows, slots=slots, scales=scales)


def attention(layout: PackedLayout, kv: KVSlots) -> Int8Attend:  # noqa: ARG001 - the layout says all
    """All slots made wide, then as usual."""

    def attend(q: Tensor, slots: Pair, scales: Pair) -> Tensor:
        k, v = (slot.float() * scale[..., None] for slot, scale in zip(slots, scales, strict=True))
        return row_by_row(layout)(q.float(), k, v).to(q.dtype)

    return attend


def attention_widened(layout: PackedLayout, kv: KVSlots) -> Int8Attend:
    """Widens the slots that the pass reads, up to the ends of its spans; all layers share one buffer."""
    ends: dict[int, int] = {}
    for span in sorted(layout.spans, key=lambda span: span.slot):
        ends[span.slot] = max(ends.get(span.slot, 0), span.start + span.length)
    place = {slot: index for index, slot in enumerate(ends)}
    kv_heads, width = kv.data.shape[4:]
    room = KVSlots(
        layers=1,
        slots=len(ends),
        capacity=max(ends.values()),
        kv_heads=kv_heads,
        head_dim=width,
        dtype=kv.dtype,
        device=kv.data.device,
    )
    spans = [replace(span, slot=place[span.slot]) for span in layout.spans]
    attend_wide = slots_in_place(PackedLayout.of(spans, kv.data.device), room)

    def attend(q: Tensor, slots: Pair, scales: Pair) -> Tensor:
        for numbers, scale, wide in zip(slots, scales, room.data[0], strict=True):
            for slot, end in ends.items():
                torch.mul(numbers[slot, :end], scale[slot, :end, :, None], out=wide[place[slot], :end])
        return attend_wide(q, room.data[0, 0], room.data[0, 1])

    return attend


def _written(
    write_wide: RopeWriteKV, qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, *, slots: Pair, scales: Pair
) -> Tensor:
    count, width = qkv.shape[0], slots[0].shape[-1]
    keys, values = torch.empty(2, count, 1, kv_heads, width, dtype=torch.float32, device=qkv.device)
    own = RowPlaces(rows.cos.float(), rows.sin.float(), rows.minus_sin.float(), torch.arange(count, device=qkv.device))
    q = write_wide(qkv.float(), heads, kv_heads, own, keys, values)
    for slot, scale, fresh in zip(slots, scales, (keys, values), strict=True):
        steps, sizes = quantised(fresh[:, 0])
        slot.flatten(0, 1)[rows.flat] = steps
        scale.flatten(0, 1)[rows.flat] = sizes
    return q.to(qkv.dtype)
