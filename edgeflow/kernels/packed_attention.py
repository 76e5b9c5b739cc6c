"""VARLENATTENTION over slots (ActionFlow algorithm 2, line 4): every span attends its own slot, causally.

q [L_Q, H, D]; k_slots, v_slots [S, T, KH, D]; out [L_Q, H, D]. Row r of a span at position p sees positions 0 .. p
of its slot. Rows are already written to the slots. Positions beyond a span's end hold anything, NaN included.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.layout import PackedLayout, Span


def reference(q: Tensor, k_slots: Tensor, v_slots: Tensor, layout: PackedLayout) -> Tensor:
    """Row by row, written out."""
    groups = q.shape[1] // k_slots.shape[2]
    out = torch.empty_like(q)
    for row, (slot, position) in enumerate(zip(layout.row_slot.tolist(), layout.row_position.tolist(), strict=True)):
        k = k_slots[slot, : position + 1].repeat_interleave(groups, dim=1)  # [n, H, D]
        v = v_slots[slot, : position + 1].repeat_interleave(groups, dim=1)
        scores = torch.einsum("hd,nhd->hn", q[row], k) / q.shape[-1] ** 0.5
        out[row] = torch.einsum("hn,nhd->hd", scores.softmax(-1), v)
    return out


def naive_gather(q: Tensor, k_slots: Tensor, v_slots: Tensor, layout: PackedLayout) -> Tensor:
    """The paper's naive pipe: caches of all spans are gathered into a fresh contiguous buffer, then attended."""
    spans = layout.spans
    k_all = torch.cat([k_slots[span.slot, : span.start + span.length] for span in spans])
    v_all = torch.cat([v_slots[span.slot, : span.start + span.length] for span in spans])
    out, row, key = [], 0, 0
    for span in spans:
        keys = slice(key, key + span.start + span.length)
        out.append(_attend(q[row : row + span.length], k_all[keys], v_all[keys]))
        row, key = row + span.length, keys.stop
    return torch.cat(out)


def slots_in_place(q: Tensor, k_slots: Tensor, v_slots: Tensor, layout: PackedLayout) -> Tensor:
    """Prefills read their slot in place; all decode rows run as one batch over a view of the slots they lie in."""
    out = torch.empty_like(q)
    row = 0
    decodes = len(layout.spans)
    for index, span in enumerate(layout.spans):
        if span.length == 1:
            decodes = index
            break
        end = span.start + span.length
        out[row : row + span.length] = _attend(
            q[row : row + span.length], k_slots[span.slot, :end], v_slots[span.slot, :end]
        )
        row += span.length
    if decodes < len(layout.spans):
        out[row:] = _decode_rows(q[row:], k_slots, v_slots, layout.spans[decodes:], layout.row_position[row:])
    return out


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [n, H, D] over k, v [m, KH, D], bottom-right aligned."""
    n, m = q.shape[0], k.shape[0]
    mask = None
    if n not in (1, m):
        mask = torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=n == m and n > 1,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out[0].transpose(0, 1)


def _decode_rows(q: Tensor, k_slots: Tensor, v_slots: Tensor, spans: tuple[Span, ...], positions: Tensor) -> Tensor:
    """q [n, H, D], one row a span of length 1, slots ascending: one masked batch over slots first .. last."""
    first, last = spans[0].slot, spans[-1].slot
    longest = max(span.start for span in spans) + 1
    rows = [span.slot - first for span in spans]
    count = last - first + 1
    batch = q
    if count != len(spans):
        batch = q.new_zeros(count, *q.shape[1:])
        batch[rows] = q
        lengths = positions.new_zeros(count)
        lengths[rows] = positions
        positions = lengths
    n, heads, dim = batch.shape
    k, v = k_slots[first : last + 1, :longest], v_slots[first : last + 1, :longest]
    groups = heads // k.shape[2]
    mask = torch.arange(longest, device=q.device) <= positions[:, None]  # [n, longest]
    keys = k.permute(0, 2, 3, 1)  # [n, KH, D, m]
    scores = (batch.view(n, -1, groups, dim) * dim**-0.5) @ keys  # [n, KH, groups, m]
    weights = scores.masked_fill_(~mask[:, None, None], -torch.inf).softmax(-1)
    values = v.permute(0, 2, 1, 3).masked_fill(~mask[:, None, :, None], 0)
    out = (weights @ values).view(n, heads, dim)
    return out[rows] if count != len(spans) else out
