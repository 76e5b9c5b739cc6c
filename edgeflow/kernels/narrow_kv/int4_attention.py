"""Packed attention over slots of 4 bits (kernels/kv/int4.py) that widens what a pass reads. The host reads places.

All rows of a slot that see the same number of keys in 4 bits are one tile. The tiles of a slot follow one another: they
share one widened slot, in which the keys of another group become those in 4 bits between a tile and the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import DenseLayer
from edgeflow.kernels.kv.int4 import GROUP, LARGEST, Int4Layer, in_four_bits
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.packed_attention import Attend
from edgeflow.kernels.slots_in_place import row_order, slots_in_place
from edgeflow_client.errors import ConfigError


def attention_widened(layout: PackedLayout, kv: KVSlots) -> Attend:
    """Attention of causal rows over widened slots; ConfigError for a layout with `visibility`."""
    check_causal(layout)
    tiles = list(_tiles(layout.spans))
    slots = sorted({tile.span.slot for tile in tiles})
    place = {slot: index for index, slot in enumerate(slots)}
    ends = {slot: max(tile.end for tile in tiles if tile.span.slot == slot) for slot in slots}
    rounds = _rounds(tiles)
    narrow = {tile.span.slot: tile.narrow for tile in rounds[0]} if rounds else {}
    runs = [_WidenedSlots.of(run, place, ends, narrow) for run in _adjacent(slots)]
    _clear_beyond(runs, ends, kv)
    room = KVSlots(
        layers=1,
        slots=len(slots),
        capacity=max((run.end for run in runs), default=0),
        kv_heads=kv.kv_heads,
        head_dim=kv.head_dim,
        dtype=kv.dtype,
        device=kv.data.device,
    )
    steps = [_TileStep.of(each, place, room) for each in rounds]
    widen = _Widening(max((run.numbers(room) for run in runs), default=0), room)
    order = row_order([row for step in steps for row in step.rows], kv.data.device)

    def attend(q: Tensor, layer: Int4Layer) -> Tensor:
        wide: DenseLayer = room.layer(0)
        for run in runs:
            run.widen(layer, wide, widen)
        for slot, end in ends.items():
            wide.keys[place[slot], narrow[slot] : end] = layer.exact[slot, narrow[slot] : end]
        seen, parts = dict(narrow), []
        for step in steps:
            for slot, stop in step.narrow.items():
                _widen_keys(widen, layer, slice(slot, slot + 1), slice(seen[slot], stop), wide.keys[place[slot], None])
                seen[slot] = stop
            parts.append(step.attend(step.taken(q), wide))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out if order is None else out[order]

    return attend


def check_causal(layout: PackedLayout) -> None:
    """Raise ConfigError for a layout with `visibility`."""
    if layout.visibility is not None:
        raise ConfigError("packed_attention: int4 KV serves rows that see all up to themselves")


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows of a span that see as many keys in 4 bits."""

    span: Span
    first_row: int
    """The index of its first row in the pass."""
    narrow: int
    """The number of keys that the rows see in 4 bits."""

    @property
    def end(self) -> int:
        return self.span.start + self.span.length


def _tiles(spans: Sequence[Span]) -> Iterator[_Tile]:
    first_row = 0
    for span in spans:
        start, end = span.start, span.start + span.length
        while start < end:
            narrow = in_four_bits(start)
            stop = min(end, narrow + GROUP - 1)
            yield _Tile(Span(span.slot, start, stop - start), first_row, narrow)
            first_row += stop - start
            start = stop


def _rounds(tiles: Sequence[_Tile]) -> list[list[_Tile]]:
    """The tiles of each slot with the fewest keys in 4 bits, then those with the next number, and so on."""
    numbers: dict[int, list[int]] = {}
    for slot, narrow in sorted({(tile.span.slot, tile.narrow) for tile in tiles}):
        numbers.setdefault(slot, []).append(narrow)
    rounds: list[list[_Tile]] = [[] for _ in range(max(map(len, numbers.values()), default=0))]
    for tile in tiles:
        rounds[numbers[tile.span.slot].index(tile.narrow)].append(tile)
    return rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class _TileStep:
    """Tiles of different slots."""

    rows: list[int]
    """The rows of the pass."""
    index: Tensor | None
    """The same rows as an index; None where they lie side by side."""
    narrow: dict[int, int]
    """The number of keys seen in 4 bits, by slot."""
    attend: Attend
    """Attention over the widened slots."""

    @classmethod
    def of(cls, tiles: Sequence[_Tile], place: dict[int, int], room: KVSlots) -> _TileStep:
        device = room.data.device
        rows = [row for tile in tiles for row in range(tile.first_row, tile.first_row + tile.span.length)]
        spans = [Span(place[tile.span.slot], tile.span.start, tile.span.length) for tile in tiles]
        in_line = rows == list(range(rows[0], rows[0] + len(rows)))
        return cls(
            rows=rows,
            index=None if in_line else torch.tensor(rows, device=device),
            narrow={tile.span.slot: tile.narrow for tile in tiles},
            attend=slots_in_place(PackedLayout.of(spans, device), room),
        )

    def taken(self, q: Tensor) -> Tensor:
        return q[self.rows[0] : self.rows[0] + len(self.rows)] if self.index is None else q[self.index]


@dataclass(frozen=True, slots=True, kw_only=True)
class _WidenedSlots:
    """Slots side by side, which are widened together."""

    slots: slice
    first: int
    """The index of the first of them among the widened slots."""
    end: int
    """The furthest place that rows see in any of them."""
    narrow: int
    """The most keys in 4 bits that first rows see."""

    @classmethod
    def of(
        cls, slots: Sequence[int], place: dict[int, int], ends: dict[int, int], narrow: dict[int, int]
    ) -> _WidenedSlots:
        furthest, most = max(ends[slot] for slot in slots), max(narrow[slot] for slot in slots)
        return cls(slots=slice(slots[0], slots[-1] + 1), first=place[slots[0]], end=furthest, narrow=most)

    def numbers(self, room: KVSlots) -> int:
        """The most numbers that are widened at once."""
        count: int = self.slots.stop - self.slots.start
        return count * self.end * room.kv_heads * room.head_dim

    def widen(self, layer: Int4Layer, wide: DenseLayer, widen: _Widening) -> None:
        """All values, and the keys that first rows see in 4 bits."""
        places = slice(self.first, self.first + self.slots.stop - self.slots.start)
        step, offset = layer.value_grids[:, self.slots, : self.end, :, None]
        widen(layer.values[self.slots, : self.end], step, offset, wide.values[places, : self.end])
        _widen_keys(widen, layer, self.slots, slice(0, self.narrow), wide.keys[places])


def _adjacent(slots: Sequence[int]) -> list[list[int]]:
    """Ascending slots in runs without a gap."""
    runs: list[list[int]] = []
    for slot in slots:
        if runs and slot == runs[-1][-1] + 1:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    return runs


def _clear_beyond(runs: Sequence[_WidenedSlots], ends: dict[int, int], kv: KVSlots) -> None:
    """Zero the steps of what a run reads beyond the end of a slot, in all layers: -inf hides a number, but not NaN."""
    _, key_grids, value_grids, *_ = kv.tensors
    for run in runs:
        for slot in range(run.slots.start, run.slots.stop):
            if ends[slot] < run.end:
                value_grids[:, :, slot, ends[slot] : run.end] = 0
                key_grids[:, :, slot, in_four_bits(ends[slot] - 1) // GROUP : -(-run.end // GROUP)] = 0


def _widen_keys(widen: _Widening, layer: Int4Layer, slots: slice, places: slice, out: Tensor) -> None:
    """Widen the keys of whole groups of some slots. out [n, T, KH, D]: the widened slots."""
    if places.start == places.stop:
        return
    codes, wide = (each[:, places].view(len(each), -1, GROUP, *each.shape[2:]) for each in (layer.keys[slots], out))
    step, offset = layer.key_grids[:, slots, places.start // GROUP : places.stop // GROUP, None]
    widen(codes, step, offset, wide)


class _Widening:
    """As `Grid.numbers`, into a tensor of any float dtype and without large temporary ones, whose pages cost more than
    the arithmetic. numbers: the most at once."""

    def __init__(self, numbers: int, room: KVSlots) -> None:
        device = room.data.device
        self._codes = torch.empty(numbers // 2, dtype=torch.uint8, device=device)
        self._floats = torch.empty(0 if room.dtype == torch.float32 else numbers, device=device)

    def __call__(self, codes: Tensor, step: Tensor, offset: Tensor, out: Tensor) -> None:
        """codes [.., D/2] → out [.., D]; step and offset of shapes that broadcast."""
        half, own = codes.shape[-1], self._codes[: codes.numel()].view(codes.shape)
        floats = out if out.dtype == torch.float32 else self._floats[: out.numel()].view(out.shape)
        floats[..., :half].copy_(torch.bitwise_and(codes, LARGEST, out=own))
        floats[..., half:].copy_(torch.bitwise_right_shift(codes, 4, out=own))
        floats.add_(offset).mul_(step.view(torch.bfloat16))
        if floats is not out:
            out.copy_(floats)
