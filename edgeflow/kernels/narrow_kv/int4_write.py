"""FUSEDROPEANDWRITEKV into slots of 4 bits (kernels/kv/int4.py).

Values are quantised at once. Keys enter the exact ones of the pass and the newest of their slot, and a group is
quantised when its last row is written. Rows of a slot follow one another in a pass, by ascending position. Those that
only pad it come last, and do not enter the newest keys: there they would take the place of others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edgeflow.kernels import rope_write_kv
from edgeflow.kernels.kv.formats import DenseLayer
from edgeflow.kernels.kv.int4 import GROUP, RING, Grid, Int4Layer, packed
from edgeflow.kernels.rope_write_kv import RopeWriteKV, RowPlaces


def reference(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: Int4Layer) -> Tensor:
    """Row by row; every row brings the keys of its group so far."""
    q, keys, values = _turned(rope_write_kv.reference, qkv, heads, kv_heads, rows)
    live = [True] * len(qkv) if rows.live is None else rows.live.tolist()
    for row, flat in enumerate(rows.flat.tolist()):
        slot, position = divmod(flat, layer.keys.shape[1])
        grid = Grid.over(values[row], -1)
        layer.values[slot, position] = packed(grid.codes(values[row]))
        layer.value_grids[0, slot, position], layer.value_grids[1, slot, position] = grid.step[:, 0], grid.offset[:, 0]
        layer.exact[slot, position] = keys[row]
        group, first = position // GROUP, position // GROUP * GROUP
        if live[row]:
            layer.newest[slot, position % RING] = keys[row]
            for place in range(first, position):
                layer.exact[slot, place] = layer.newest[slot, place % RING]
        if position + 1 == first + GROUP:
            full = layer.exact[slot, first : first + GROUP]
            grid = Grid.over(full, 0)
            layer.keys[slot, first : first + GROUP] = packed(grid.codes(full))
            layer.key_grids[0, slot, group], layer.key_grids[1, slot, group] = grid.step[0], grid.offset[0]
    return q


def indexed(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: Int4Layer) -> Tensor:
    """All rows and all groups together. The host reads once for all layers which groups begin and end in a pass."""
    q, keys, values = _turned(rope_write_kv.indexed, qkv, heads, kv_heads, rows)
    places = rows.kept("int4", lambda: _Places.of(rows, layer))
    newest, exact = layer.newest.flatten(0, 1), layer.exact.flatten(0, 1)
    if places.begun is not None:
        exact[places.begun] = newest[places.begun_newest]
    exact.index_copy_(0, places.exact, keys)
    newest.index_copy_(0, places.newest, keys[places.last])
    if places.full is not None:
        full = exact[places.full]  # [n, GROUP, KH, D]
        grid = Grid.over(full, 1)
        layer.keys.flatten(0, 1)[places.full_codes] = packed(grid.codes(full))
        _write_grid(layer.key_grids, grid, 1, places.groups)
    _write_values(values, rows, layer)
    return q


def on_device(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: Int4Layer) -> Tensor:
    """Every row with its whole group, by indices that stay on the device.

    That is up to GROUP times the work of `indexed`. Rows of a group write the same wherever they write.
    """
    q, keys, values = _turned(rope_write_kv.indexed, qkv, heads, kv_heads, rows)
    capacity, lines = layer.keys.shape[1], layer.exact.shape[1]
    newest, exact, codes = (each.flatten(0, 1) for each in (layer.newest, layer.exact, layer.keys))
    slot, position, row = rows.flat // capacity, rows.flat % capacity, torch.arange(len(keys), device=keys.device)
    first, end, live_end = _spans(rows, position)
    place = position[:, None] // GROUP * GROUP + torch.arange(GROUP, device=keys.device)  # [L_Q, GROUP]
    at, cells = slot[:, None] * lines + place, slot[:, None] * RING + place % RING
    exact.index_copy_(0, slot * lines + position, keys)
    group = torch.where((place < position[first, None])[..., None, None], newest[cells], exact[at])
    exact.index_copy_(0, at.flatten(), group.flatten(0, 1))
    cell, latest = slot * RING + position % RING, row + (live_end - 1 - row) // RING * RING  # of the rows of a cell
    kept = (latest >= first)[:, None, None]
    newest.index_copy_(0, cell, torch.where(kept, keys[latest.clamp(min=0)], newest[cell]))
    full = (place[:, -1] <= position[end - 1])[:, None, None]
    grid = Grid.over(group, 1)
    at = slot[:, None] * capacity + place.clamp(max=capacity - 1)
    codes.index_copy_(0, at.flatten(), torch.where(full[..., None], packed(grid.codes(group)), codes[at]).flatten(0, 1))
    at = slot * layer.key_grids.shape[2] + position // GROUP
    for stored, each in zip(layer.key_grids.flatten(1, 2), (grid.step, grid.offset), strict=True):
        stored.index_copy_(0, at, torch.where(full, each[:, 0], stored[at]))
    _write_values(values, rows, layer)
    return q


def _spans(rows: RowPlaces, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each row the first row of its span, the row behind it, and the row behind those that do not pad it [L_Q].

    Rows that drafts share at the end of a slot belong to the span before them.
    """
    row, live = torch.arange(len(position), device=position.device), rows.live
    far = torch.diff(rows.flat, prepend=rows.flat[:1] - 2)
    starts = (far != 1) & (far != 0) | (position == 0)
    first, span = (starts * row).cummax(0).values, starts.cumsum(0) - 1
    counts = torch.zeros_like(row).index_add(0, span, torch.ones_like(row))
    lives = counts if live is None else torch.zeros_like(row).index_add(0, span, live.long())
    return first, first + counts[span], first + lives[span]


def _write_values(values: Tensor, rows: RowPlaces, layer: Int4Layer) -> None:
    grid = Grid.over(values, -1)
    layer.values.flatten(0, 1).index_copy_(0, rows.flat, packed(grid.codes(values)))
    _write_grid(layer.value_grids, grid, -1, rows.flat)


def _write_grid(grids: Tensor, grid: Grid, dim: int, lines: Tensor) -> None:
    """grids [2, S, lines of a slot, ..]; dim: of the grid, of size 1; lines: indices over all slots."""
    for stored, each in zip(grids, (grid.step, grid.offset), strict=True):
        stored.flatten(0, 1).index_copy_(0, lines, each.squeeze(dim))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
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
    def of(cls, rows: RowPlaces, layer: Int4Layer) -> _Places:
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


def _groups_of(slot: Tensor, position: Tensor, rows: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """Slots [n, 1] and places [n, GROUP] of the groups in which some rows lie. rows [L_Q] bool."""
    chosen = rows.nonzero()[:, 0]
    return slot[chosen, None], position[chosen, None] // GROUP * GROUP + member


def _turned(
    write: RopeWriteKV, qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [L_Q, heads, D] of the rows, in their dtype."""
    count, width = len(qkv), qkv.shape[1] // (heads + 2 * kv_heads)
    keys, values = torch.empty(2, count, 1, kv_heads, width, dtype=qkv.dtype, device=qkv.device)
    own = replace(rows, flat=torch.arange(count, device=qkv.device))
    q = write(qkv, heads, kv_heads, own, DenseLayer(keys, values))
    return q, keys[:, 0], values[:, 0]
