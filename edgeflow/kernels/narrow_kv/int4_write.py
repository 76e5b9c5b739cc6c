"""FUSEDROPEANDWRITEKV into slots of 4 bits (kernels/kv/int4.py).

Values are quantised at once. Keys enter the exact ones of the pass and the newest of their slot, and a group is
quantised when its last row is written. Rows of a slot follow one another in a pass, by ascending position. Those that
only pad it come last, and do not enter the newest keys: there they would take the place of others.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from edgeflow.kernels import rope_write_kv
from edgeflow.kernels.kv.formats import DenseLayer
from edgeflow.kernels.kv.int4 import GROUP, RING, Grid, Int4Layer, packed
from edgeflow.kernels.narrow_kv.int4_places import Places, PlacesOnDevice
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
    places = rows.kept("int4", lambda: Places.of(rows, layer))
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
    places = rows.kept("int4 on_device", lambda: PlacesOnDevice.of(rows, layer))
    layer.exact.flatten(0, 1).index_copy_(0, places.exact, keys)
    _write_groups(places, layer)
    newest = layer.newest.flatten(0, 1)
    newest.index_copy_(0, places.newest, torch.where(places.kept, keys[places.latest], newest[places.newest]))
    _write_values(values, rows, layer)
    return q


def _write_groups(places: PlacesOnDevice, layer: Int4Layer) -> None:
    """Bring the keys that groups had before the pass, and quantise the groups that are full now."""
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
