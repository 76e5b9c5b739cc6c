"""FUSEDROPEANDWRITEKV into slots of 4 bits (kernels/kv/int4.py).

Values are quantised at once. Keys enter the exact ones of the pass and the newest of their slot, and a group is
quantised when its last row is written. Rows of a slot follow one another in a pass, by ascending position. Those that
only pad it come last, and do not enter the newest keys: there they would take the place of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edgeflow.kernels import rope_write_kv
from edgeflow.kernels.kv.formats import DenseLayer
from edgeflow.kernels.kv.int4 import GROUP, RING, Grid, Int4Layer, packed
from edgeflow.kernels.rope_write_kv import RopeWriteKV, RowPlaces


def reference(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: Int4Layer) -> Tensor:
    """Row by row; every row restores the keys of its group so far."""
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
    places = rows.kept("int4", lambda: GroupPlaces.of(rows, layer))
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
    """All rows together, and the groups in which they lie, once each, by indices that stay on the device."""
    q, keys, values = _turned(rope_write_kv.indexed, qkv, heads, kv_heads, rows)
    places = rows.kept("int4 on_device", lambda: GroupPlacesOnDevice.of(rows, layer))
    layer.exact.flatten(0, 1).index_copy_(0, places.exact, keys)
    _write_groups(places, layer)
    newest = layer.newest.flatten(0, 1)
    newest.index_copy_(0, places.newest, torch.where(places.kept, keys[places.latest], newest[places.newest]))
    _write_values(values, rows, layer)
    return q


def _write_groups(places: GroupPlacesOnDevice, layer: Int4Layer) -> None:
    """Restore the keys that groups had before the pass, and quantise the groups that are now full."""
    newest, exact, codes = (each.flatten(0, 1) for each in (layer.newest, layer.exact, layer.keys))
    group = torch.where(places.earlier, newest[places.cells], exact[places.group])  # [n, GROUP, KH, D]
    exact.index_copy_(0, places.group.flatten(), group.flatten(0, 1))
    grid, full = Grid.over(group, 1), places.full
    found = torch.where(full[..., None], packed(grid.codes(group)), codes[places.codes])
    codes.index_copy_(0, places.codes.flatten(), found.flatten(0, 1))
    for stored, each in zip(layer.key_grids.flatten(1, 2), (grid.step, grid.offset), strict=True):
        stored.index_copy_(0, places.grids, torch.where(full, each[:, 0], stored[places.grids]))


def _write_values(values: Tensor, rows: RowPlaces, layer: Int4Layer) -> None:
    grid = Grid.over(values, -1)
    layer.values.flatten(0, 1).index_copy_(0, rows.flat, packed(grid.codes(values)))
    _write_grid(layer.value_grids, grid, -1, rows.flat)


def _write_grid(grids: Tensor, grid: Grid, dim: int, lines: Tensor) -> None:
    """grids [2, S, lines of a slot, ..]; dim: of the grid, of size 1; lines: indices over all slots."""
    for stored, each in zip(grids, (grid.step, grid.offset), strict=True):
        stored.flatten(0, 1).index_copy_(0, lines, each.squeeze(dim))


def _turned(
    write: RopeWriteKV, qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [L_Q, heads, D] of the rows, in their dtype."""
    count, width = len(qkv), qkv.shape[1] // (heads + 2 * kv_heads)
    keys, values = torch.empty(2, count, 1, kv_heads, width, dtype=qkv.dtype, device=qkv.device)
    own = replace(rows, flat=torch.arange(count, device=qkv.device))
    q = write(qkv, heads, kv_heads, own, DenseLayer(keys, values))
    return q, keys[:, 0], values[:, 0]


def most_groups(lengths: Sequence[int]) -> int:
    """The number of groups that spans of so many rows lie in at most, wherever they begin."""
    return sum((length + GROUP - 2) // GROUP + 1 for length in lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlaces:
    """Where the rows of a pass enter, as indices over the lines of all slots."""

    exact: Tensor
    """The places of the rows among exact keys."""
    begun: Tensor | None
    """The groups that spans begin within; None without any."""
    begun_newest: Tensor
    """Where the keys of those groups come from, among the newest."""
    last: Tensor
    """The rows that become the newest of their slot."""
    newest: Tensor
    """The places of those rows among the newest."""
    full: Tensor | None
    """[n, GROUP]: the places, among exact keys, of the groups that are now full; None without any."""
    full_codes: Tensor
    """[n, GROUP]: the places of these groups among codes."""
    groups: Tensor
    """The lines of their grids."""

    @classmethod
    def of(cls, rows: RowPlaces, layer: Int4Layer) -> GroupPlaces:
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
class GroupPlacesOnDevice:
    """As GroupPlaces, without reading anything on the host: the number of groups follows from the lengths of spans.

    There may be fewer; the first group then takes the place of the missing ones, and is written again.
    """

    exact: Tensor
    """The places of the rows among exact keys."""
    group: Tensor
    """[n, GROUP]: the places of the groups among exact keys."""
    cells: Tensor
    """[n, GROUP]: their places among the newest."""
    codes: Tensor
    """[n, GROUP]: their places among codes."""
    grids: Tensor
    """[n]: the lines of their grids."""
    earlier: Tensor
    """[n, GROUP, 1, 1]: True for keys from before the pass."""
    full: Tensor
    """[n, 1, 1]: True for groups that are now full."""
    newest: Tensor
    """[L_Q]: the place of each row among the newest of its slot."""
    latest: Tensor
    """[L_Q]: the row that stays in that place."""
    kept: Tensor
    """[L_Q, 1, 1]: False where no row stays, since all of them only pad the pass."""

    @classmethod
    def of(cls, rows: RowPlaces, layer: Int4Layer) -> GroupPlacesOnDevice:
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
    """For each row the first row of its span, the row after it, and the row after those that do not pad it [L_Q].

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
