"""The operators of KV slots in int8: written with RoPE, read inside attention.

A key or value head of one position is a row of D numbers with one scale: largest magnitude / 127, in float32;
number = int8 * scale.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from edgeflow.kernels import rope_write_kv
from edgeflow.kernels.kv.formats import DenseLayer, Int8Layer, Pair
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.packed_attention import Attend
from edgeflow.kernels.rope_write_kv import RopeWriteKV, RowPlaces
from edgeflow.kernels.slots_in_place import slots_in_place


def quantised(rows: Tensor) -> Pair:
    """[.., D] → int8 [.., D], float32 [..]; halves are rounded up, a row of zeros has scale 0."""
    scale = rows.float().abs().amax(-1) / 127
    steps = rows.float() / torch.where(scale == 0, 1.0, scale)[..., None]
    return (steps + 0.5).floor().to(torch.int8), scale


def write(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: Int8Layer) -> Tensor:
    """The plain write into temporary rows, which are then quantised into their slots."""
    return _written(rope_write_kv.reference, qkv, heads, kv_heads, rows, layer=layer)


def write_indexed(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: Int8Layer) -> Tensor:
    """All rows turn together."""
    return _written(rope_write_kv.indexed, qkv, heads, kv_heads, rows, layer=layer)


def attention_widened(layout: PackedLayout, kv: KVSlots) -> Attend:
    """Widens the slots that the pass reads, up to the ends of its spans; all layers share one buffer."""
    ends = _ends(layout)
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
    spans = tuple(replace(span, slot=place[span.slot]) for span in layout.spans)
    attend_wide = slots_in_place(replace(layout, places=spans), room)  # reads places and what rows see alone

    def attend(q: Tensor, layer: Int8Layer) -> Tensor:
        wide: DenseLayer = room.layer(0)
        for slot, end in ends.items():
            torch.mul(layer.keys[slot, :end], layer.key_scales[slot, :end, :, None], out=wide.keys[place[slot], :end])
            torch.mul(
                layer.values[slot, :end], layer.value_scales[slot, :end, :, None], out=wide.values[place[slot], :end]
            )
        return attend_wide(q, wide)

    return attend


def _ends(layout: PackedLayout) -> dict[int, int]:
    """The end of what the pass reads in each of its slots, by ascending slot."""
    ends = [span.start + span.length for span in layout.spans]
    if layout.sees is not None:
        parts = torch.split(layout.seen(), list(layout.lengths))
        ends = [int(part.any(0).nonzero().max()) + 1 for part in parts]
    pairs = sorted(zip((span.slot for span in layout.spans), ends, strict=True))
    return dict(pairs)  # of equal slots the last one, which ends latest


def _written(
    write_wide: RopeWriteKV, qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: Int8Layer
) -> Tensor:
    count, width = qkv.shape[0], layer.keys.shape[-1]
    keys, values = torch.empty(2, count, 1, kv_heads, width, dtype=torch.float32, device=qkv.device)
    own = RowPlaces(rows.cos.float(), rows.sin.float(), rows.minus_sin.float(), torch.arange(count, device=qkv.device))
    q = write_wide(qkv.float(), heads, kv_heads, own, DenseLayer(keys, values))
    stored = (layer.keys, layer.key_scales), (layer.values, layer.value_scales)
    for (numbers, scales), fresh in zip(stored, (keys, values), strict=True):
        steps, sizes = quantised(fresh[:, 0])
        numbers.flatten(0, 1)[rows.flat] = steps
        scales.flatten(0, 1)[rows.flat] = sizes
    return q.to(qkv.dtype)
