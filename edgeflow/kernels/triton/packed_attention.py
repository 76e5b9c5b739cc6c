"""Packed attention over slots: one launch for prefills, chunks and decode rows of any lengths.

The work is a list of tiles (first row, rows, split, splits, part), made of the lengths and the reach of a layout; slots
and positions are read on the device, so that a graph of one shape is replayed with others. A tile holds the
queries of all heads that share a KV head (row by row, head by head): a decode row of group 7 is a tile of 7 queries.
Tiles of at most SMALL queries take a narrow path of the same launch, and over long slots they are split along the
keys; a second launch joins the parts. Keys beyond a row's position are never read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeflow.kernels.int8_kv import Int8Attend
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.layout import PackedLayout, on_device
from edgeflow.kernels.packed_attention import Attend
from edgeflow.kernels.triton.attention_tile import LOG2_E, attend_tile
from edgeflow.kernels.triton.launch import INTERPRETED, cdiv, power_of_two, warps_of

SMALL = 16  # queries: the least a tensor core takes
SPLIT_KEYS = 256  # keys a part reads at least
TILE_FIELDS = 5


@triton.jit
def _store_tile(
    q, k_slots, v_slots, k_scales, v_scales, row_slot, row_position, out, parts, stats,
    first_row, rows, split, splits, part, T, scale,
    KH: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    QUANTISED: tl.constexpr, WIDE: tl.constexpr, SPLITTABLE: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1)
    member = tl.arange(0, BLOCK_M)
    width = tl.arange(0, BLOCK_D)
    row = (first_row + member // GROUP).to(tl.int64)
    live = member < rows * GROUP
    kept = live[:, None] & (width < D)[None, :]
    query = (row * KH * GROUP + kv_head * GROUP + member % GROUP) * D
    queries = tl.load(q + query[:, None] + width[None, :], mask=kept, other=0.0)
    if WIDE:
        queries = queries.to(tl.float32)
    position = tl.load(row_position + row, mask=live, other=0).to(tl.int32)
    end = tl.load(row_position + first_row + rows - 1).to(tl.int32) + 1
    low = 0
    high = end
    if SPLITTABLE:
        reach = tl.cdiv(tl.cdiv(end, splits), BLOCK_N) * BLOCK_N
        low = tl.minimum(split * reach, end)
        high = tl.minimum(low + reach, end)
    base = tl.load(row_slot + first_row) * T * KH + kv_head
    total_out, largest, total = attend_tile(
        queries, position, k_slots + base * D, v_slots + base * D, k_scales + base, v_scales + base, low, high,
        KH * D, KH, scale, D, BLOCK_M, BLOCK_N, BLOCK_D, QUANTISED, WIDE,
    )  # fmt: skip
    if SPLITTABLE:
        if splits > 1:
            place = ((part + split) * KH + kv_head).to(tl.int64) * BLOCK_M + member
            tl.store(parts + place[:, None] * D + width[None, :], total_out, mask=kept)
            tl.store(stats + 2 * place, largest, mask=live)
            tl.store(stats + 2 * place + 1, total, mask=live)
        else:
            result = total_out / tl.where(total == 0.0, 1.0, total)[:, None]
            tl.store(out + query[:, None] + width[None, :], result.to(out.dtype.element_ty), mask=kept)
    else:
        result = total_out / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + query[:, None] + width[None, :], result.to(out.dtype.element_ty), mask=kept)


@triton.jit
def _attend(
    q, k_slots, v_slots, k_scales, v_scales, row_slot, row_position, tiles, out, parts, stats, T, scale,
    KH: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, SMALL_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    QUANTISED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    tile = tiles + tl.program_id(0) * 5
    first_row = tl.load(tile)
    rows = tl.load(tile + 1)
    split = tl.load(tile + 2)
    splits = tl.load(tile + 3)
    part = tl.load(tile + 4)
    if rows * GROUP <= SMALL_M:
        _store_tile(
            q, k_slots, v_slots, k_scales, v_scales, row_slot, row_position, out, parts, stats,
            first_row, rows, split, splits, part, T, scale, KH, GROUP, D,
            SMALL_M, BLOCK_N, BLOCK_D, QUANTISED, WIDE, True,
        )  # fmt: skip
    else:
        _store_tile(
            q, k_slots, v_slots, k_scales, v_scales, row_slot, row_position, out, parts, stats,
            first_row, rows, split, splits, part, T, scale, KH, GROUP, D,
            BLOCK_M, BLOCK_N, BLOCK_D, QUANTISED, WIDE, False,
        )  # fmt: skip


@triton.jit
def _join(
    parts, stats, joins, out, KH: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    SMALL_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    tile = joins + tl.program_id(0) * 5
    first_row = tl.load(tile)
    rows = tl.load(tile + 1)
    splits = tl.load(tile + 3)
    part = tl.load(tile + 4)
    kv_head = tl.program_id(1)
    member = tl.arange(0, SMALL_M)
    width = tl.arange(0, BLOCK_D)
    live = member < rows * GROUP
    kept = live[:, None] & (width < D)[None, :]
    largest = tl.full([SMALL_M], -float("inf"), tl.float32)
    total = tl.zeros([SMALL_M], tl.float32)
    joined = tl.zeros([SMALL_M, BLOCK_D], tl.float32)
    for split in range(0, splits):
        place = ((part + split) * KH + kv_head).to(tl.int64) * SMALL_M + member
        theirs = tl.load(stats + 2 * place, mask=live, other=-float("inf"))
        new_largest = tl.maximum(largest, theirs)
        anchor = tl.where(new_largest == -float("inf"), 0.0, new_largest)
        mine, weight = tl.exp2(largest - anchor), tl.exp2(theirs - anchor)
        total = total * mine + tl.load(stats + 2 * place + 1, mask=live, other=0.0) * weight
        value = tl.load(parts + place[:, None] * D + width[None, :], mask=kept, other=0.0)
        joined = joined * mine[:, None] + value * weight[:, None]
        largest = new_largest
    row = (first_row + member // GROUP).to(tl.int64)
    query = (row * KH * GROUP + kv_head * GROUP + member % GROUP) * D
    result = joined / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + query[:, None] + width[None, :], result.to(out.dtype.element_ty), mask=kept)


@dataclass(frozen=True, slots=True)
class Tiles:
    """tiles, joins [n, 5] int32 on the device; parts: how many partial results are written."""

    tiles: Tensor
    joins: Tensor
    parts: int

    @classmethod
    def of(cls, layout: PackedLayout, group: int, block_m: int, splits: int, device: torch.device) -> Tiles:
        """splits: parts of every small tile; 0 splits where slots may be long."""
        tiles: list[tuple[int, ...]] = []
        joins: list[tuple[int, ...]] = []
        first_row = parts = 0
        for length in layout.lengths:
            rows = length if length * group <= SMALL else block_m // group
            for start in range(0, length, rows):
                count = min(rows, length - start)
                small = count * group <= SMALL
                pieces = (splits or cdiv(layout.reach, SPLIT_KEYS)) if small else 1
                tile = [(first_row + start, count, split, pieces, parts) for split in range(pieces)]
                tiles += tile
                if pieces > 1:
                    joins.append(tile[0])
                    parts += pieces
            first_row += length
        table = on_device(tiles + joins, device, torch.int32).view(-1, TILE_FIELDS)
        return cls(table[: len(tiles)], table[len(tiles) :], parts)


def packed_attention(
    layout: PackedLayout,
    kv: KVSlots,  # noqa: ARG001 - the layout says all
    *,
    block_m: int = 64,
    block_n: int = 64,
    splits: int = 0,
    num_warps: int = 0,
    num_stages: int = 2,
) -> Attend:
    """Tiles of block_m queries by block_n keys (at most 32 beyond width 128); num_warps 0: by the width of a head."""
    run = _Launch(layout, block_m, block_n, splits, num_warps, num_stages)

    def attend(q: Tensor, k_slots: Tensor, v_slots: Tensor) -> Tensor:
        return run(q, (k_slots, v_slots), None)

    return attend


class _Launch:
    """Attention of one layout; its tiles and the room for parts serve all layers and all passes that replay it."""

    def __init__(
        self, layout: PackedLayout, block_m: int, block_n: int, splits: int, num_warps: int, num_stages: int
    ) -> None:
        self._layout = layout
        self._blocks = block_m, block_n
        self._splits = splits
        self._warps = num_warps
        self._stages = num_stages

    def __call__(self, q: Tensor, slots: tuple[Tensor, Tensor], scales: tuple[Tensor, Tensor] | None) -> Tensor:
        layout = self._layout
        _, capacity, kv_heads, width = slots[0].shape
        group = q.shape[1] // kv_heads
        block_m, block_n = self._blocks[0], min(self._blocks[1], 32) if width > 128 else self._blocks[1]
        q = q.contiguous()
        out = torch.empty_like(q)
        if not len(q):
            return out
        tiles, room = self._work(kv_heads, group, width, q.device)
        shape = kv_heads, group, width
        scale = LOG2_E / math.sqrt(width)
        wide = INTERPRETED and q.dtype == torch.bfloat16
        _attend[(len(tiles.tiles), kv_heads)](
            q, *slots, *(scales or slots), layout.row_slot, layout.row_position, tiles.tiles, out, *room,
            capacity, scale, *shape, block_m, SMALL, block_n, power_of_two(width), scales is not None, wide,
            num_warps=self._warps or warps_of(width), num_stages=self._stages,
        )  # fmt: skip
        if len(tiles.joins):
            _join[(len(tiles.joins), kv_heads)](*room, tiles.joins, out, *shape, SMALL, power_of_two(width))
        return out

    def _work(self, kv_heads: int, group: int, width: int, device: torch.device) -> tuple[Tiles, tuple[Tensor, Tensor]]:
        """Kept by the layout: a graph must not hold a copy from the host."""

        def make() -> tuple[Tiles, tuple[Tensor, Tensor]]:
            tiles = Tiles.of(self._layout, group, self._blocks[0], self._splits, device)
            return tiles, _room(tiles.parts * kv_heads * SMALL, width, device)

        return self._layout.kept(("triton tiles", kv_heads, group, width, self._blocks[0], self._splits), make)


def _room(rows: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Partial sums [rows, D], and the largest score and sum of weights of each [rows, 2]."""
    return torch.empty(max(rows, 1), width, device=device), torch.empty(max(rows, 1), 2, device=device)


def packed_attention_int8(
    layout: PackedLayout,
    kv: KVSlots,  # noqa: ARG001 - the layout says all
    *,
    block_m: int = 64,
    block_n: int = 64,
    splits: int = 0,
    num_warps: int = 0,
    num_stages: int = 2,
) -> Int8Attend:
    """Over int8 slots and their scales; products in the dtype of the queries."""
    return _Launch(layout, block_m, block_n, splits, num_warps, num_stages)
