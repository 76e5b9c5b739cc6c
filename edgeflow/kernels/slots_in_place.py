"""Packed attention that reads every dense slot in place, tile by tile. The host reads slots and places.

Rows may see given places (`PackedLayout.visibility`). Rows with equal visibility need no mask, and such spans in
neighbouring slots are one batch: the denoising steps of frames in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.kernels.kv.formats import DenseLayer, Places
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.packed_attention import Attend, attend_one, causal_mask, visible

# Decode rows whose slots lie at most this far apart run as one batch: computing an idle slot between two busy
# ones costs less than another call (one idle slot is the rule: the one in which the newest frame is prefilled).
MAX_SLOT_STEP = 2
TILE = 64  # rows of a long prefill: measured with 32 to 256 on a CPU


def slots_in_place(layout: PackedLayout, kv: KVSlots, tile: int = TILE) -> Attend:
    """Attention that reads every dense slot in place: longer spans one by one, decode rows as masked batches of near
    slots.

    tile: rows of a span that are computed together, over the keys up to the last of them, so that less is computed and
    masked. 0 = all rows.
    """
    blocks: list[_RowBlock | SeenRows | _Batch] = []
    first_row = 0
    singles: list[tuple[int, Span]] = []
    seen: list[tuple[int, Span]] = []
    causal = None if layout.visibility is None else layout.visibility.causal(layout.row_position).tolist()
    for span in layout.spans:
        follows = span.length > 1 and span.start > 0  # steps of several frames, which may form one batch
        if causal is not None and (follows or not all(causal[first_row : first_row + span.length])):
            seen.append((first_row, span))
        elif span.length == 1:
            singles.append((first_row, span))
        else:
            blocks += [_RowBlock.of(first_row + at, part, kv.data.device) for at, part in _tiles(span, tile)]
        first_row += span.length
    batches = [_Batch.of(run, kv.data) for run in _runs_of_near_slots(singles)]
    _clear_beyond(layout.spans, batches, kv)
    blocks += [*seen_rows(layout, seen, tile), *batches]
    order = row_order([row for block in blocks for row in block.rows], kv.data.device)

    def attend(q: Tensor, layer: DenseLayer) -> Tensor:
        parts = [part for block in blocks for part in block.attend(q, layer.keys, layer.values)]
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out if order is None else out[order]

    return attend


@dataclass(frozen=True, slots=True)
class _RowBlock:
    """A span of several rows."""

    rows: range
    slot: int
    end: int
    mask: Tensor | None
    """The mask of its rows; None where it starts its slot, so that the kernel's own causal mask is right."""

    @classmethod
    def of(cls, first_row: int, span: Span, device: torch.device) -> _RowBlock:
        rows = range(first_row, first_row + span.length)
        return cls(rows, span.slot, span.start + span.length, causal_mask(span, device))

    def attend(self, q: Tensor, k_slots: Tensor, v_slots: Tensor) -> Sequence[Tensor]:
        rows = q[self.rows.start : self.rows.stop]
        return [attend_one(rows, k_slots[self.slot, : self.end], v_slots[self.slot, : self.end], self.mask)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Decode rows of slots first .. last as one batch."""

    rows: list[int]
    first: int
    last: int
    longest: int
    """The most places that a row sees."""
    source: Tensor | None
    """[last - first + 1]: the row of each slot's query, any row for an idle slot; None where the rows lie side by side
    and no slot is idle.
    """
    kept: tuple[slice, ...]
    """Runs of busy slots."""
    mask: Tensor | None
    """[slots, 1, 1, longest]: 0 or -inf; None where all rows see equally far."""
    ends: dict[int, int]
    """The number of places that the row of each slot sees."""

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
    parts = _parts(span.length, tile)
    return [(part.start, Span(span.slot, span.start + part.start, len(part))) for part in parts]


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


def row_order(rows: list[int], device: torch.device) -> Tensor | None:
    """The index of each row of the pass in the concatenated parts; None where they are in order."""
    if rows == list(range(len(rows))):
        return None
    order = [0] * len(rows)
    for place, row in enumerate(rows):
        order[row] = place
    return torch.tensor(order, device=device)


ROWS_ALIKE = 8  # rows per run, on average, from which runs are computed one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRows:
    """Rows part.start .. part.stop of each of some spans of the same length, which lie side by side in neighbouring
    slots, over the same places.
    """

    first_row: int
    """The first row of the first span."""
    length: int
    """Rows of each span."""
    slots: range
    """The slots of the spans."""
    part: range
    places: Places
    mask: Tensor | None
    """[rows, places] bool: which row sees which place; None where each sees all of them."""

    @property
    def rows(self) -> list[int]:
        """The rows of the pass, in the order of what `attend` returns."""
        firsts = range(self.first_row, self.first_row + self.length * len(self.slots), self.length)
        return [first + at for first in firsts for at in self.part]

    def attend(self, q: Tensor, k_slots: Tensor, v_slots: Tensor) -> Sequence[Tensor]:
        count, slots = len(self.slots), slice(self.slots.start, self.slots.stop)
        spans = q[self.first_row : self.first_row + count * self.length].view(count, self.length, *q.shape[1:])
        k, v = (each[slots][:, self.places].transpose(1, 2) for each in (k_slots, v_slots))
        out = F.scaled_dot_product_attention(
            spans[:, self.part.start : self.part.stop].transpose(1, 2),
            k,
            v,
            attn_mask=self.mask,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return [out.transpose(1, 2).reshape(-1, *q.shape[1:])]


def seen_rows(layout: PackedLayout, spans: Sequence[tuple[int, Span]], tile: int) -> Iterator[SeenRows]:
    """The rows of some spans, each given with its first row. tile: rows that are computed together under a mask, 0 =
    all."""
    if layout.visibility is None or not spans:
        return
    ranges = _joined(layout.visibility.ranges.cpu().numpy())
    device = layout.visibility.ranges.device
    named = layout.visibility.tree is not None
    for first_row, span, count in _alike(ranges, spans, alone=named):
        own = ranges[first_row : first_row + span.length]
        runs = [range(span.length)] if named else _runs(own)
        # A few runs of rows with equal visibility need no mask: each is one plain product.
        few = not named and len(runs) * ROWS_ALIKE <= max(span.length, 2 * ROWS_ALIKE)
        for part in runs if few else _parts(span.length, tile):
            rows = slice(first_row + part.start, first_row + (part.start + 1 if few else part.stop))
            places, mask = visible(layout, rows) if named else _visible(ranges[rows], device)
            yield SeenRows(
                first_row=first_row,
                length=span.length,
                slots=range(span.slot, span.slot + count),
                part=part,
                places=places,
                mask=None if few else mask,
            )


def _joined(ranges: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n, 4]: two ranges that meet are one."""
    joined = ranges.reshape(-1, 4).copy()
    meeting = (joined[:, 1] == joined[:, 2]) & (joined[:, 3] > joined[:, 2])
    joined[meeting, 1], joined[meeting, 2], joined[meeting, 3] = joined[meeting, 3], 0, 0
    return joined


def _visible(ranges: NDArray[np.int64], device: torch.device) -> tuple[Places, Tensor]:
    """As `visible` on a device, of rows without bits: [n, 4] on the host."""
    place = np.arange(ranges.max())
    starts, stops = ranges[:, ::2, None], ranges[:, 1::2, None]
    seen: NDArray[np.bool_] = np.any((place >= starts) & (place < stops), axis=1)
    places = np.flatnonzero(seen.any(0))
    first, last = int(places[0]), int(places[-1])
    in_line = last - first + 1 == len(places)
    own = slice(first, last + 1) if in_line else torch.from_numpy(places).to(device)
    return own, torch.from_numpy(seen[:, first : last + 1] if in_line else seen[:, places]).to(device)


def _alike(
    ranges: NDArray[np.int64], spans: Sequence[tuple[int, Span]], *, alone: bool
) -> Iterator[tuple[int, Span, int]]:
    """The first of each run of adjacent spans with equal visibility, and the length of the run. alone: runs of one
    span.
    """
    first_row, first, count = *spans[0], 1
    for row, span in spans[1:]:
        follows = (row, span.slot, span.length) == (first_row + count * first.length, first.slot + count, first.length)
        own, other = ranges[row : row + span.length], ranges[first_row : first_row + first.length]
        if not alone and follows and np.array_equal(own, other):
            count += 1
            continue
        yield first_row, first, count
        first_row, first, count = row, span, 1
    yield first_row, first, count


def _runs(ranges: NDArray[np.int64]) -> list[range]:
    """Runs of rows with equal visibility."""
    cuts = [0, *(np.flatnonzero((ranges[1:] != ranges[:-1]).any(1)) + 1).tolist(), len(ranges)]
    return [range(start, stop) for start, stop in pairwise(cuts)]


def _parts(length: int, tile: int) -> list[range]:
    step = tile or length
    return [range(at, min(at + step, length)) for at in range(0, length, step)]
