"""Packed attention that reads every dense slot where it lies, tile by tile. The host reads slots and places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.kv.formats import DenseLayer
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.packed_attention import Attend, attend_one, causal_mask
from edgeflow.kernels.seen_in_place import SeenRows, seen_rows

# Decode rows whose slots lie at most this far apart run as one batch: computing an idle slot between two busy
# ones costs less than another call (one idle slot is the rule: the one in which the newest frame is prefilled).
MAX_SLOT_STEP = 2
TILE = 64  # rows of a long prefill: measured with 32 to 256 on a CPU


def slots_in_place(layout: PackedLayout, kv: KVSlots, tile: int = TILE) -> Attend:
    """Every dense slot is read where it lies: longer spans one by one, all decode rows as masked batches of near slots.

    tile: rows of a span that are computed together, over the keys up to the last of them: what they all must not see is
    not computed. 0 = all rows.
    """
    blocks: list[_Block | SeenRows | _Batch] = []
    first_row = 0
    singles: list[tuple[int, Span]] = []
    seen: list[tuple[int, Span]] = []
    causal = None if layout.sees is None else layout.sees.causal(layout.row_position).tolist()
    for span in layout.spans:
        follows = span.length > 1 and span.start > 0  # those of several frames can be one batch
        if causal is not None and (follows or not all(causal[first_row : first_row + span.length])):
            seen.append((first_row, span))
        elif span.length == 1:
            singles.append((first_row, span))
        else:
            blocks += [_Block.of(first_row + at, part, kv.data.device) for at, part in _tiles(span, tile)]
        first_row += span.length
    batches = [_Batch.of(run, kv.data) for run in _runs_of_near_slots(singles)]
    _clear_beyond(layout.spans, batches, kv)
    blocks += [*seen_rows(layout, seen, tile), *batches]
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
        return cls(rows, span.slot, span.start + span.length, causal_mask(span, device))

    def attend(self, q: Tensor, k_slots: Tensor, v_slots: Tensor) -> Sequence[Tensor]:
        rows = q[self.rows.start : self.rows.stop]
        return [attend_one(rows, k_slots[self.slot, : self.end], v_slots[self.slot, : self.end], self.mask)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Decode rows of slots first .. last as one batch.

    source [last - first + 1]: the row that each slot's query is, any row for an idle slot; None where the rows lie
    side by side and no slot is idle. kept: runs of busy slots. mask [slots, 1, 1, longest]: 0 or -inf; None where all
    see equally far.
    """

    rows: list[int]
    first: int
    last: int
    longest: int
    source: Tensor | None
    kept: tuple[slice, ...]
    mask: Tensor | None
    ends: dict[int, int]

    @classmethod
    def of(cls, run: Sequence[tuple[int, Span]], data: Tensor) -> _Batch:
        rows = [row for row, _ in run]
        first, last = run[0][1].slot, run[-1][1].slot
        ends = {span.slot: span.start + 1 for _, span in run}
        row_of = {span.slot: row for row, span in run}
        longest = max(ends.values())
        lengths = [ends.get(slot, longest) for slot in range(first, last + 1)]
        source = [row_of.get(slot, rows[0]) for slot in range(first, last + 1)]
        in_line = source == list(range(rows[0], rows[0] + len(source)))
        return cls(
            rows=rows,
            first=first,
            last=last,
            longest=longest,
            source=None if in_line else torch.tensor(source, device=data.device),
            kept=_busy_runs([slot - first for slot in ends]),
            mask=None if min(lengths) == longest else _hiding(lengths, longest, data),
            ends=ends,
        )

    def attend(self, q: Tensor, k_slots: Tensor, v_slots: Tensor) -> Sequence[Tensor]:
        slots = slice(self.first, self.last + 1)
        rows = q[self.rows[0] : self.rows[-1] + 1] if self.source is None else q[self.source]
        k, v = k_slots[slots, : self.longest].transpose(1, 2), v_slots[slots, : self.longest].transpose(1, 2)
        grouped = rows.reshape(len(rows), k.shape[1], -1, rows.shape[-1])  # a KV head's queries are rows of its batch
        out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=self.mask).reshape(rows.shape)
        return [out[kept] for kept in self.kept]


def _hiding(lengths: Sequence[int], longest: int, data: Tensor) -> Tensor:
    """[slots, 1, 1, longest]: -inf from the length of each on."""
    hidden = torch.arange(longest, device=data.device) >= torch.tensor(lengths, device=data.device)[:, None]
    return torch.zeros(hidden.shape, dtype=data.dtype, device=data.device).masked_fill_(hidden, -torch.inf)[
        :, None, None
    ]


def _tiles(span: Span, tile: int) -> list[tuple[int, Span]]:
    """The span in parts of `tile` rows, each with its first row."""
    step = tile or span.length
    return [(at, Span(span.slot, span.start + at, min(step, span.length - at))) for at in range(0, span.length, step)]


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
