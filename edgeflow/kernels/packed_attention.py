"""VARLENATTENTION over slots (ActionFlow algorithm 2, line 4): every span attends its own slot, causally.

An implementation is called once a pass with the layout and the store, and returns what each layer calls:
(q [L_Q, H, D], layer of the KV format) → [L_Q, H, D]. The row at position p of a slot sees
positions 0 .. p of it (bottom-right aligned); scores are scaled by D^-1/2; H is a multiple of KH (grouped queries).
The pass's rows are already written. Positions at and beyond a slot's last span hold anything, NaN included, and an
implementation may clear them. Spans may come in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.kv_formats import DenseLayer, KVLayer
from edgeflow.kernels.layout import PackedLayout, Span

Attend = Callable[[Tensor, Any], Tensor]
"""(q, layer of the KV format) → rows"""
PackedAttention = Callable[[PackedLayout, KVSlots], Attend]

# Decode rows whose slots lie at most this far apart run as one batch: computing an idle slot between two busy
# ones costs less than another call (one idle slot is the rule: the one in which the newest frame is prefilled).
MAX_SLOT_STEP = 2
TILE = 64  # rows of a long prefill: measured with 32 to 256 on a CPU


def reference(layout: PackedLayout, kv: KVSlots) -> Attend:  # noqa: ARG001 - the layout says all
    """Row by row, written out, over slots of any format."""
    places = list(zip(layout.row_slot.tolist(), layout.row_position.tolist(), strict=True))

    def attend(q: Tensor, layer: KVLayer) -> Tensor:
        out = torch.empty_like(q)
        for row, (slot, position) in enumerate(places):
            k, v = layer.read(slot, slice(position + 1))  # [n, KH, D]
            k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1) for each in (k, v))  # [n, H, D]
            scores = torch.einsum("hd,nhd->hn", q[row].to(k.dtype), k) / q.shape[-1] ** 0.5
            out[row] = torch.einsum("hn,nhd->hd", scores.softmax(-1), v)
        return out

    return attend


def masked(layout: PackedLayout, kv: KVSlots) -> Attend:  # noqa: ARG001
    """Each row over all of its slot that the pass may reach, the rest hidden; slots and positions stay on the device.

    As slow as that sounds; what it does depends on the shape of the pass alone, so a graph can hold it in any dtype.
    """
    place = torch.arange(layout.reach, device=layout.row_slot.device)
    seen = place <= layout.row_position[:, None]  # [L_Q, reach]

    def attend(q: Tensor, layer: KVLayer) -> Tensor:
        read = layer.read(layout.row_slot, slice(layout.reach))  # [L_Q, reach, KH, D]
        k, v = (each.masked_fill(~seen[..., None, None], 0).transpose(1, 2) for each in read)
        grouped = q.reshape(len(q), k.shape[1], -1, q.shape[-1]).to(
            k.dtype
        )  # a KV head's queries are rows of its batch
        out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=seen[:, None, None])
        return out.reshape(q.shape).to(q.dtype)

    return attend


def naive_gather(layout: PackedLayout, kv: KVSlots) -> Attend:  # noqa: ARG001
    """The paper's naive pipe: in every layer the caches of all spans are copied into one fresh contiguous buffer."""
    spans = layout.spans
    lengths, ends = [span.length for span in spans], [span.start + span.length for span in spans]
    masks = [_mask(span, layout.row_slot.device) for span in spans]

    def attend(q: Tensor, layer: KVLayer) -> Tensor:
        read = [layer.read(span.slot, slice(end)) for span, end in zip(spans, ends, strict=True)]
        k_all, v_all = (torch.cat(each) for each in zip(*read, strict=True))
        queries = torch.split(q.to(k_all.dtype), lengths)
        parts = zip(queries, torch.split(k_all, ends), torch.split(v_all, ends), masks, strict=True)
        return torch.cat([_attend_one(*part) for part in parts]).to(q.dtype)

    return attend


def slots_in_place(layout: PackedLayout, kv: KVSlots, tile: int = TILE) -> Attend:
    """Every dense slot is read where it lies: longer spans one by one, all decode rows as masked batches of near slots.

    tile: rows of a span that are computed together, over the keys up to the last of them: what they all must not see is
    not computed. 0 = all rows.
    """
    blocks: list[_Block | _Batch] = []
    first_row = 0
    singles: list[tuple[int, Span]] = []
    for span in layout.spans:
        if span.length == 1:
            singles.append((first_row, span))
        else:
            blocks += [_Block.of(first_row + at, part, kv.data.device) for at, part in _tiles(span, tile)]
        first_row += span.length
    batches = [_Batch.of(run, kv.data) for run in _runs_of_near_slots(singles)]
    _clear_beyond(layout.spans, batches, kv)
    blocks += batches
    order = _row_order([row for block in blocks for row in block.rows], kv.data.device)

    def attend(q: Tensor, layer: DenseLayer) -> Tensor:
        parts = [part for block in blocks for part in block.attend(q, layer.keys, layer.values)]
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out if order is None else out[order]

    return attend


@dataclass(frozen=True, slots=True)
class _Block:
    """A span of several rows. mask: None where it starts its slot, so that the kernel's own causal mask does."""

    rows: range
    slot: int
    end: int
    mask: Tensor | None

    @classmethod
    def of(cls, first_row: int, span: Span, device: torch.device) -> _Block:
        rows = range(first_row, first_row + span.length)
        return cls(rows, span.slot, span.start + span.length, _mask(span, device))

    def attend(self, q: Tensor, k_slots: Tensor, v_slots: Tensor) -> Sequence[Tensor]:
        rows = q[self.rows.start : self.rows.stop]
        return [_attend_one(rows, k_slots[self.slot, : self.end], v_slots[self.slot, : self.end], self.mask)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Decode rows of slots first .. last as one batch.

    source [last - first + 1]: the row that each slot's query is, any row for an idle slot; None where the rows lie
    side by side and no slot is idle. kept: runs of busy slots. mask [slots, 1, 1, longest]: 0 or -inf.
    """

    rows: list[int]
    first: int
    last: int
    longest: int
    source: Tensor | None
    kept: tuple[slice, ...]
    mask: Tensor
    ends: dict[int, int]

    @classmethod
    def of(cls, run: Sequence[tuple[int, Span]], data: Tensor) -> _Batch:
        rows = [row for row, _ in run]
        first, last = run[0][1].slot, run[-1][1].slot
        ends = {span.slot: span.start + 1 for _, span in run}
        row_of = {span.slot: row for row, span in run}
        longest = max(ends.values())
        lengths = torch.tensor([ends.get(slot, longest) for slot in range(first, last + 1)], device=data.device)
        hidden = torch.arange(longest, device=data.device) >= lengths[:, None]
        mask = torch.zeros(hidden.shape, dtype=data.dtype, device=data.device).masked_fill_(hidden, -torch.inf)
        source = [row_of.get(slot, rows[0]) for slot in range(first, last + 1)]
        in_line = source == list(range(rows[0], rows[0] + len(source)))
        return cls(
            rows=rows,
            first=first,
            last=last,
            longest=longest,
            source=None if in_line else torch.tensor(source, device=data.device),
            kept=_busy_runs([slot - first for slot in ends]),
            mask=mask[:, None, None],
            ends=ends,
        )

    def attend(self, q: Tensor, k_slots: Tensor, v_slots: Tensor) -> Sequence[Tensor]:
        slots = slice(self.first, self.last + 1)
        rows = q[self.rows[0] : self.rows[-1] + 1] if self.source is None else q[self.source]
        k, v = k_slots[slots, : self.longest].transpose(1, 2), v_slots[slots, : self.longest].transpose(1, 2)
        grouped = rows.reshape(len(rows), k.shape[1], -1, rows.shape[-1])  # a KV head's queries are rows of its batch
        out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=self.mask).reshape(rows.shape)
        return [out[kept] for kept in self.kept]


def _attend_one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
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


def _tiles(span: Span, tile: int) -> list[tuple[int, Span]]:
    """The span in parts of `tile` rows, each with its first row."""
    step = tile or span.length
    return [(at, Span(span.slot, span.start + at, min(step, span.length - at))) for at in range(0, span.length, step)]


def _mask(span: Span, device: torch.device) -> Tensor | None:
    """[length, start + length], bottom-right aligned; None where no mask or the plain causal one does."""
    if span.start == 0 or span.length == 1:
        return None
    seen = torch.ones(span.length, span.start + span.length, dtype=torch.bool, device=device)
    return seen.tril(span.start)


def _runs_of_near_slots(singles: list[tuple[int, Span]]) -> list[list[tuple[int, Span]]]:
    """Decode rows by ascending slot, cut where slots repeat or lie far apart."""
    runs: list[list[tuple[int, Span]]] = []
    for row, span in sorted(singles, key=lambda single: single[1].slot):
        if runs and 1 <= span.slot - runs[-1][-1][1].slot <= MAX_SLOT_STEP:
            runs[-1].append((row, span))
        else:
            runs.append([(row, span)])
    return runs


def _busy_runs(offsets: list[int]) -> tuple[slice, ...]:
    """Ascending offsets as slices: [0, 1, 3] → 0:2, 3:4."""
    starts = [offset for offset in offsets if offset - 1 not in offsets]
    stops = [offset + 1 for offset in offsets if offset + 1 not in offsets]
    return tuple(map(slice, starts, stops))


def _clear_beyond(spans: Sequence[Span], batches: Sequence[_Batch], kv: KVSlots) -> None:
    """Zero what a batch reads beyond the end of its slots, in all layers: -inf hides a number, but not NaN."""
    ends: dict[int, int] = {}
    for span in spans:
        ends[span.slot] = max(ends.get(span.slot, 0), span.start + span.length)
    for batch in batches:
        for slot in batch.ends:
            if ends[slot] < batch.longest:
                kv.data[:, :, slot, ends[slot] : batch.longest] = 0


def _row_order(rows: list[int], device: torch.device) -> Tensor | None:
    """The index of each row of the pass in the concatenated parts; None where they are in order."""
    if rows == list(range(len(rows))):
        return None
    order = [0] * len(rows)
    for place, row in enumerate(rows):
        order[row] = place
    return torch.tensor(order, device=device)
