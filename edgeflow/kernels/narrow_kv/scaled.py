"""The operators of KV slots in 8 bits: written with RoPE, read inside attention.

A key or value head of one position is a row of D numbers with one scale in float32: largest magnitude / the largest
number of the format; number = stored * scale. Rounded to the nearest: int8 with halves up, e4m3 with ties to even.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from edgeflow.kernels import rope_write_kv
from edgeflow.kernels.kv.formats import DenseLayer, Pair, ScaledLayer
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.packed_attention import Attend
from edgeflow.kernels.rope_write_kv import RopeWriteKV, RowPlaces
from edgeflow.kernels.slots_in_place import slots_in_place


def quantised(rows: Tensor, numbers: torch.dtype) -> Pair:
    """[.., D] → [.., D] in `numbers`, int8 or e4m3, and float32 [..]; a row of zeros has scale 0."""
    whole = not numbers.is_floating_point
    largest = torch.iinfo(numbers).max if whole else torch.finfo(numbers).max
    scale = rows.float().abs().amax(-1) / largest
    steps = rows.float() / torch.where(scale == 0, 1.0, scale)[..., None]
    return ((steps + 0.5).floor() if whole else steps).to(numbers), scale


def write(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: ScaledLayer) -> Tensor:
    """The plain write into temporary rows, which are then quantised into their slots."""
    return _written(rope_write_kv.reference, qkv, heads, kv_heads, rows, layer=layer)


def write_indexed(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: ScaledLayer) -> Tensor:
    """All rows turn together."""
    return _written(rope_write_kv.indexed, qkv, heads, kv_heads, rows, layer=layer)


def attention_widened(layout: PackedLayout, kv: KVSlots) -> Attend:
    """Widens the slots that the pass reads, up to the ends of its spans; all layers share one buffer."""
    ends = _ends(layout)
    place = {slot: index for index, slot in enumerate(ends)}
    room = KVSlots(
        layers=1,
        slots=len(ends),
        capacity=max(ends.values()),
        kv_heads=kv.kv_heads,
        head_dim=kv.head_dim,
        dtype=kv.dtype,
        device=kv.data.device,
    )
    spans = tuple(replace(span, slot=place[span.slot]) for span in layout.spans)
    attend_wide = slots_in_place(replace(layout, places=spans), room)  # reads places and what rows see alone

    def attend(q: Tensor, layer: ScaledLayer) -> Tensor:
        wide: DenseLayer = room.layer(0)
        for slot, end in ends.items():
            _widen(layer.keys[slot, :end], layer.key_scales[slot, :end], wide.keys[place[slot], :end])
            _widen(layer.values[slot, :end], layer.value_scales[slot, :end], wide.values[place[slot], :end])
        return attend_wide(q, wide)

    return attend


def _widen(stored: Tensor, scales: Tensor, out: Tensor) -> None:
    """stored [n, KH, D], scales [n, KH] → out [n, KH, D]; without temporary tensors, whose pages cost more."""
    out.copy_(stored).mul_(scales[..., None])


def _ends(layout: PackedLayout) -> dict[int, int]:
    """The end of what the pass reads in each of its slots, by ascending slot."""
    ends = [span.start + span.length for span in layout.spans]
    if layout.visibility is not None:
        parts = torch.split(layout.seen(), list(layout.lengths))
        ends = [int(part.any(0).nonzero().max()) + 1 for part in parts]
    pairs = sorted(zip((span.slot for span in layout.spans), ends, strict=True))
    return dict(pairs)  # of equal slots the last one, which ends latest


def _written(
    write_wide: RopeWriteKV, qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: ScaledLayer
) -> Tensor:
    count, width = qkv.shape[0], layer.keys.shape[-1]
    keys, values = torch.empty(2, count, 1, kv_heads, width, dtype=torch.float32, device=qkv.device)
    own = RowPlaces(
        cos=rows.cos.float(),
        sin=rows.sin.float(),
        flat=torch.arange(count, device=qkv.device),
        lengths=rows.lengths,
    )
    q = write_wide(qkv.float(), heads, kv_heads, own, DenseLayer(keys, values))
    stored = (layer.keys, layer.key_scales), (layer.values, layer.value_scales)
    for (numbers, scales), fresh in zip(stored, (keys, values), strict=True):
        steps, sizes = quantised(fresh[:, 0], numbers.dtype)
        numbers.view(torch.int8).flatten(0, 1)[rows.flat] = steps.view(torch.int8)
        scales.flatten(0, 1)[rows.flat] = sizes
    return q.to(qkv.dtype)
