"""Where the rows of a pass and their groups lie in slots of 4 bits (kernels/kv/int4.py), once for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.kernels.kv.int4 import GROUP, RING, Int4Layer
from edgeflow.kernels.rope_write_kv import RowPlaces


def most_groups(lengths: Sequence[int]) -> int:
    """The number of groups that spans of so many rows lie in at most, wherever they begin."""
    return sum((length + GROUP - 2) // GROUP + 1 for length in lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the rows of a pass enter, as indices over the lines of all slots.

    exact: the exact keys of the rows. begun, begun_newest: the groups that spans begin within, and where their keys
    come from; None without any. last: the rows that stay the newest of their slot; newest: where these enter.
    full [n, GROUP], full_codes: the places of the groups that are full now, among exact keys and among codes; None
    without any. groups: the lines of their grids.
    """

    exact: Tensor
    begun: Tensor | None
    begun_newest: Tensor
    last: Tensor
    newest: Tensor
    full: Tensor | None
    full_codes: Tensor
    groups: Tensor

    @classmethod
    def of(cls, rows: RowPlaces, layer: Int4Layer) -> Places:
        """layer: any of the store."""
        flat, (slots, capacity), lines = rows.flat, layer.keys.shape[:2], layer.exact.shape[1]
        slot, position = flat // capacity, flat % capacity
        live = torch.ones_like(flat, dtype=torch.bool) if rows.live is None else rows.live
        member = torch.arange(GROUP, device=flat.device)
        starts = ~torch.isin(flat - 1, flat) & (position % GROUP > 0)
        begun_slot, begun = _groups_of(slot, position, starts, member)
        furthest = flat.new_zeros(slots).scatter_reduce(0, slot, position * live, "amax")
        last = (live & (position > furthest[slot] - RING)).nonzero()[:, 0]
        full_slot, full = _groups_of(slot, position, position % GROUP == GROUP - 1, member)
        return cls(
            exact=slot * lines + position,
            begun=begun_slot * lines + begun if len(begun) else None,
            begun_newest=begun_slot * RING + begun % RING,
            last=last,
            newest=slot[last] * RING + position[last] % RING,
            full=full_slot * lines + full if len(full) else None,
            full_codes=full_slot * capacity + full,
            groups=full_slot[:, 0] * (lines // GROUP) + full[:, 0] // GROUP,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesOnDevice:
    """The same without reading anything on the host: how many groups there are follows from the lengths of spans.

    There may be fewer; the first group then stands in the place of those that are missing, and is written again.

    exact: the exact keys of the rows. group, cells, codes [n, GROUP]: the places of the groups among exact keys, among
    the newest and among codes; grids [n]: the lines of their grids. earlier [n, GROUP, 1, 1]: the keys that were there
    before the pass. full [n, 1, 1]: groups that are full now. newest, latest: where each row enters the newest of its
    slot, and the row that stays there; kept [L_Q, 1, 1]: False where none does, for all only pad the pass.
    """

    exact: Tensor
    group: Tensor
    cells: Tensor
    codes: Tensor
    grids: Tensor
    earlier: Tensor
    full: Tensor
    newest: Tensor
    latest: Tensor
    kept: Tensor

    @classmethod
    def of(cls, rows: RowPlaces, layer: Int4Layer) -> PlacesOnDevice:
        """layer: any of the store."""
        capacity, lines = layer.keys.shape[1], layer.exact.shape[1]
        slot, position = rows.flat // capacity, rows.flat % capacity
        row = torch.arange(len(position), device=position.device)
        far = torch.diff(rows.flat, prepend=rows.flat[:1] - 2)
        starts = (far != 1) & (far != 0) | (position == 0)
        first, end, live_end = _spans(starts, rows.live)
        opens = starts | (position % GROUP == 0) & (far != 0)
        one = row.new_zeros(most_groups(rows.lengths)).index_copy_(0, opens.cumsum(0) - 1, row)  # any row of each group
        member = torch.arange(GROUP, device=position.device)
        place = position[one, None] // GROUP * GROUP + member
        group_slot = slot[one, None]
        latest = row + (live_end - 1 - row) // RING * RING  # of the rows that enter where this one does
        return cls(
            exact=slot * lines + position,
            group=group_slot * lines + place,
            cells=group_slot * RING + place % RING,
            codes=group_slot * capacity + place.clamp(max=capacity - 1),
            grids=slot[one] * layer.key_grids.shape[2] + position[one] // GROUP,
            earlier=(place < position[first[one], None])[..., None, None],
            full=(place[:, -1] <= position[end[one] - 1])[:, None, None],
            newest=slot * RING + position % RING,
            latest=latest.clamp(min=0),
            kept=(latest >= first)[:, None, None],
        )


def _spans(starts: Tensor, live: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """For each row the first row of its span, the row behind it, and the row behind those that do not pad it [L_Q].

    starts [L_Q] bool. Rows that drafts share at the end of a slot belong to the span before them.
    """
    row = torch.arange(len(starts), device=starts.device)
    first, span = (starts * row).cummax(0).values, starts.cumsum(0) - 1
    counts = torch.zeros_like(row).index_add(0, span, torch.ones_like(row))
    lives = counts if live is None else torch.zeros_like(row).index_add(0, span, live.long())
    return first, first + counts[span], first + lives[span]


def _groups_of(slot: Tensor, position: Tensor, rows: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """Slots [n, 1] and places [n, GROUP] of the groups in which some rows lie. rows [L_Q] bool."""
    chosen = rows.nonzero()[:, 0]
    return slot[chosen, None], position[chosen, None] // GROUP * GROUP + member
