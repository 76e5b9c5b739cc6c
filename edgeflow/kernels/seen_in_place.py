"""Attention over dense slots for rows that see given places (`PackedLayout.sees`), read where they lie.

Rows that see the same need no mask, and spans that see the same in neighbouring slots are one batch: the denoising
steps of frames in flight. The host reads places.
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

from edgeflow.kernels.kv.formats import Places
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.packed_attention import visible

ROWS_ALIKE = 8  # rows per run, on average, from which runs are computed one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRows:
    """Rows part.start .. part.stop of each of some spans of the same length, which lie side by side in neighbouring
    slots, over the same places.

    first_row, length: of the first span. slots: of the spans. mask [rows, places]: which row sees which; None where
    each sees all of them.
    """

    first_row: int
    length: int
    slots: range
    part: range
    places: Places
    mask: Tensor | None

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
    if layout.sees is None or not spans:
        return
    ranges = _joined(layout.sees.ranges.cpu().numpy())
    device = layout.sees.ranges.device
    named = layout.sees.tree is not None
    for first_row, span, count in _alike(ranges, spans, alone=named):
        own = ranges[first_row : first_row + span.length]
        runs = [range(span.length)] if named else _runs(own)
        few = not named and len(runs) * ROWS_ALIKE <= max(span.length, 2 * ROWS_ALIKE)
        for part in runs if few else _tiles(span.length, tile):
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
    """The first of each run of spans side by side that see the same, and how many these are. alone: one each."""
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
    """Rows that see the same, one run after the other."""
    cuts = [0, *(np.flatnonzero((ranges[1:] != ranges[:-1]).any(1)) + 1).tolist(), len(ranges)]
    return [range(start, stop) for start, stop in pairwise(cuts)]


def _tiles(length: int, tile: int) -> list[range]:
    step = tile or length
    return [range(at, min(at + step, length)) for at in range(0, length, step)]
