"""VARLENATTENTION over slots (ActionFlow algorithm 2, line 4): every span attends its own slot, causally.

An implementation is called once a pass with the layout and the store, and returns what each layer calls: (q [L_Q, H,
D], layer of the KV format) → [L_Q, H, D]. The row at position p of a slot sees positions 0 .. p of it (bottom-right
aligned), or those that `layout.visibility` gives. Scores are scaled by D^-1/2; H is a multiple of KH (grouped queries).
The pass's rows are already written. Beyond the last position that a slot's rows see there may be anything, NaN
included; up to it all numbers are finite. An implementation may clear positions beyond a slot's last span. Spans may
come in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.kv.formats import KVLayer, Places
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots

Attend = Callable[[Tensor, Any], Tensor]
"""(q, layer of the KV format) → rows"""
PackedAttention = Callable[[PackedLayout, KVSlots], Attend]


def reference(layout: PackedLayout, kv: KVSlots) -> Attend:  # noqa: ARG001 - the layout says all
    """Row by row, written out, over slots of any format."""
    slots, positions = layout.row_slot.tolist(), layout.row_position.tolist()
    places: list[Places] = [slice(position + 1) for position in positions]
    if layout.visibility is not None:
        places = [seen.nonzero()[:, 0] for seen in layout.seen()]

    def attend(q: Tensor, layer: KVLayer) -> Tensor:
        out = torch.empty_like(q)
        for row, (slot, own, position) in enumerate(zip(slots, places, positions, strict=True)):
            k, v = layer.read(slot, own, position)  # [n, KH, D]
            k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1) for each in (k, v))  # [n, H, D]
            scores = torch.einsum("hd,nhd->hn", q[row].to(k.dtype), k) / q.shape[-1] ** 0.5
            out[row] = torch.einsum("hn,nhd->hd", scores.softmax(-1), v)
        return out

    return attend


def masked(layout: PackedLayout, kv: KVSlots) -> Attend:  # noqa: ARG001
    """Each row over all of its slot that the pass may reach, the rest hidden; slots and positions stay on the device.

    As slow as that sounds; what it does depends only on the shape of the pass, so a graph can hold it in any dtype.
    """
    seen = layout.seen()

    def attend(q: Tensor, layer: KVLayer) -> Tensor:
        # Hidden numbers are zeroed, not only masked: a probability of 0 times NaN is NaN.
        read = layer.read(layout.row_slot, slice(layout.reach), layout.row_position)  # [L_Q, reach, KH, D]
        k, v = (each.masked_fill(~seen[..., None, None], 0).transpose(1, 2) for each in read)
        grouped = q.reshape(len(q), k.shape[1], -1, q.shape[-1]).to(
            k.dtype
        )  # a KV head's queries are rows of its batch
        out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=seen[:, None, None])
        return out.reshape(q.shape).to(q.dtype)

    return attend


def naive_gather(layout: PackedLayout, kv: KVSlots) -> Attend:  # noqa: ARG001
    """The paper's naive pipe: in every layer the caches of all spans are copied into one fresh contiguous buffer.

    All rows of a span read the same.
    """
    spans, lengths = layout.spans, layout.lengths
    seen = [_seen_by(layout, first, span) for first, span in zip(accumulate(lengths, initial=0), spans, strict=False)]

    def attend(q: Tensor, layer: KVLayer) -> Tensor:
        read = [layer.read(span.slot, places, span.start) for span, (places, _) in zip(spans, seen, strict=True)]
        counts = [len(k) for k, _ in read]
        k_all, v_all = (torch.cat(each) for each in zip(*read, strict=True))
        queries, masks = torch.split(q.to(k_all.dtype), list(lengths)), [mask for _, mask in seen]
        parts = zip(queries, torch.split(k_all, counts), torch.split(v_all, counts), masks, strict=True)
        return torch.cat([attend_one(*part) for part in parts]).to(q.dtype)

    return attend


def visible(layout: PackedLayout, rows: slice) -> tuple[Places, Tensor]:
    """The places that any of some rows of one slot sees, and which row sees which of them: [n, places] bool.

    Nothing else may be read: a NaN that is masked by -inf still spoils the result.
    """
    seen = layout.seen(rows)
    places = seen.any(0).nonzero()[:, 0]
    first, count = int(places[0]), len(places)
    in_line = int(places[-1]) - first + 1 == count
    return slice(first, first + count) if in_line else places, seen[:, places]


def _seen_by(layout: PackedLayout, first_row: int, span: Span) -> tuple[Places, Tensor | None]:
    """The places and the mask of a span."""
    if layout.visibility is None:
        return slice(span.start + span.length), causal_mask(span, layout.row_slot.device)
    return visible(layout, slice(first_row, first_row + span.length))


def attend_one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """q [n, H, D] over k, v [m, KH, D]; without a mask causal where n = m, and all of it where n = 1."""
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=mask is None and q.shape[0] > 1,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out[0].transpose(0, 1)


def causal_mask(span: Span, device: torch.device) -> Tensor | None:
    """[length, start + length], bottom-right aligned; None where no mask or the plain causal one does."""
    if span.start == 0 or span.length == 1:
        return None
    seen = torch.ones(span.length, span.start + span.length, dtype=torch.bool, device=device)
    return seen.tril(span.start)
