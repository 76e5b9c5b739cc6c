"""Packed attention over slots: prefills, chunks and decode rows of any lengths, in one launch or two.

The work is a list of tiles (tile_list.py), made of the lengths and the reach of a layout; slots and positions are
read on the device, so that a graph of one shape is replayed with others. A tile holds the queries of all heads that
share a KV head (row by row, head by head): a decode row of group 7 is a tile of 7 queries. Small tiles take a narrow
path with few warps. Where tiles are split along the keys, a second kernel joins the parts; whether one is, only its
list says, so that the same kernel serves it split and whole. Keys that no row of a tile sees are never read. A layout
without `visibility` is served by a kernel that knows only causal rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeflow.kernels.kv.formats import DenseLayer, Pair, ScaledLayer
from edgeflow.kernels.kv.int4 import GROUP, Int4Layer
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.narrow_kv.int4_attention import check_causal
from edgeflow.kernels.packed_attention import Attend
from edgeflow.kernels.triton.attention_tile import LOG2_E, attend_four_bits, attend_seen, attend_tile
from edgeflow.kernels.triton.launch import INTERPRETED, multiprocessors, power_of_two, warps_of
from edgeflow.kernels.triton.tile_list import SMALL, TILE_FIELDS, Tiles

JOINED = 32  # parts that are read together
BOTH, ONLY_SMALL, ONLY_LARGE = 0, 1, 2
"""Sizes of the tiles of a launch. A launch of one size has the registers and warps that this size needs."""
AS_THEY_ARE, SCALED, FOUR_BITS = 0, 1, 2
"""How numbers are stored."""


@triton.jit
def _store_tile(
    q, k_slots, v_slots, k_scales, v_scales, k_offsets, v_offsets, exact, row_slot, row_position, ranges, tree, first,
    out, parts, stats, tile, rows, T, scale,
    KH: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    FORM: tl.constexpr, WIDE: tl.constexpr, SEES: tl.constexpr,
):  # fmt: skip
    """Store one tile of one KV head: its result into `out` [L_Q, KH GROUP, D], or its sums into `parts` and `stats`."""
    first_row = tl.load(tile)
    split = tl.load(tile + 2)
    splits = tl.load(tile + 3)
    kv_head = tl.program_id(1)
    member = tl.arange(0, BLOCK_M)
    width = tl.arange(0, BLOCK_D)
    row = (first_row + member // GROUP).to(tl.int64)  # [BLOCK_M]
    live = member < rows * GROUP
    kept = live[:, None] & (width < D)[None, :]  # [BLOCK_M, BLOCK_D]
    query = (row * KH * GROUP + kv_head * GROUP + member % GROUP) * D
    queries = tl.load(q + query[:, None] + width[None, :], mask=kept, other=0.0)
    if WIDE:
        queries = queries.to(tl.float32)
    if SEES:
        base = tl.load(row_slot + first_row) * T * KH + kv_head
        total_out, largest, total = attend_seen(
            queries, ranges, tree, first, row, live, split, splits, T, k_slots + base * D, v_slots + base * D,
            k_scales + base, v_scales + base, KH * D, KH, scale, D, BLOCK_M, BLOCK_N, BLOCK_D,
            FORM == 1, WIDE, SEES == 2,
        )  # fmt: skip
    else:
        position = tl.load(row_position + row, mask=live, other=0).to(tl.int32)
        end = tl.load(row_position + first_row + rows - 1).to(tl.int32) + 1  # keys that the last row sees
        reach = tl.cdiv(tl.cdiv(end, splits), BLOCK_N) * BLOCK_N
        low = tl.minimum(split * reach, end)
        high = tl.minimum(low + reach, end)
        slot = tl.load(row_slot + first_row)
        if FORM == 2:
            total_out, largest, total = attend_four_bits(
                queries, position, first=tl.load(row_position + first_row).to(tl.int32), low=low, high=high,
                slot=slot, head=kv_head, keys=k_slots, values=v_slots, key_steps=k_scales, value_steps=v_scales,
                key_offsets=k_offsets, value_offsets=v_offsets, exact=exact, T=T, scale=scale,
                KH=KH, D=D, BLOCK_M=BLOCK_M, BLOCK_D=BLOCK_D, WIDE=WIDE,
            )  # fmt: skip
        else:
            base = slot * T * KH + kv_head
            total_out, largest, total = attend_tile(
                queries, position, k_slots + base * D, v_slots + base * D, k_scales + base, v_scales + base, low, high,
                KH * D, KH, scale, D, BLOCK_M, BLOCK_N, BLOCK_D, FORM == 1, WIDE,
            )  # fmt: skip
    # With ranges over dense slots the mask alone decides: a branch takes registers of a second block (sm_90).
    if (splits == 1) | ((SEES > 0) & (FORM == 0)):
        result = total_out / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + query[:, None] + width[None, :], result.to(out.dtype.element_ty), mask=kept & (splits == 1))
    if splits > 1:
        line = tl.load(tile + 4).to(tl.int64) + (split * KH + kv_head) * rows * GROUP + member
        tl.store(parts + line[:, None] * D + width[None, :], total_out, mask=kept)
        tl.store(stats + 2 * line, largest, mask=live)
        tl.store(stats + 2 * line + 1, total, mask=live)


@triton.jit
def _attend(
    q, k_slots, v_slots, k_scales, v_scales, k_offsets, v_offsets, exact, row_slot, row_position, ranges, tree, first,
    tiles, out, parts, stats, T, scale,
    KH: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, TILE_FIELDS: tl.constexpr, SIZES: tl.constexpr,
    BLOCK_M: tl.constexpr, SMALL_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    FORM: tl.constexpr, WIDE: tl.constexpr, SEES: tl.constexpr,
):  # fmt: skip
    """Grid [tiles, KH]. q, out [L_Q, KH GROUP, D]; k_slots .. exact and FORM: `Stored`; parts [lines, D] and stats
    [lines, 2] of `Tiles`, both float32. ranges, tree, first: of a `Visibility`. SEES: 0 where rows are causal, 1 with
    ranges only, 2 with bits.

    SIZES: which paths there are: 0 both, by the size of a tile; 1 that of small tiles; 2 that of large ones, which any
    tile may take.
    """
    tile = tiles + tl.program_id(0) * TILE_FIELDS
    rows = tl.load(tile + 1)
    # A launch with tiles of one size compiles only their path: the registers of the larger path would limit all tiles.
    small = (rows * GROUP <= SMALL_M) & (SIZES != 2)
    if SIZES != 2:  # noqa: SIM102 - decided when it is compiled
        if small:
            _store_tile(
                q, k_slots, v_slots, k_scales, v_scales, k_offsets, v_offsets, exact, row_slot, row_position, ranges,
                tree, first, out, parts, stats, tile, rows, T, scale, KH, GROUP, D,
                SMALL_M, BLOCK_N, BLOCK_D, FORM, WIDE, SEES,
            )  # fmt: skip
    if SIZES != 1:  # noqa: SIM102
        if not small:
            _store_tile(
                q, k_slots, v_slots, k_scales, v_scales, k_offsets, v_offsets, exact, row_slot, row_position, ranges,
                tree, first, out, parts, stats, tile, rows, T, scale, KH, GROUP, D,
                BLOCK_M, BLOCK_N, BLOCK_D, FORM, WIDE, SEES,
            )  # fmt: skip


@triton.jit
def _join(
    parts, stats, joins, out,
    KH: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, TILE_FIELDS: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Grid [joins, KH, members]: one query of one joined tile. BLOCK_S parts are loaded at once, independently of each
    other, and reduced in registers; only blocks of them follow one another."""
    tile = joins + tl.program_id(0) * TILE_FIELDS
    first_row = tl.load(tile)
    rows = tl.load(tile + 1)
    splits = tl.load(tile + 3)
    line = tl.load(tile + 4)
    kv_head = tl.program_id(1)
    member = tl.program_id(2)
    width = tl.arange(0, BLOCK_D)
    inside = width < D
    if member < rows * GROUP:
        largest = -float("inf")
        total = 0.0
        joined = tl.zeros([BLOCK_D], tl.float32)
        for start in range(0, splits, BLOCK_S):
            split = start + tl.arange(0, BLOCK_S)
            there = split < splits
            place = line.to(tl.int64) + (split * KH + kv_head) * rows * GROUP + member  # [BLOCK_S]
            theirs = tl.load(stats + 2 * place, mask=there, other=-float("inf"))
            totals = tl.load(stats + 2 * place + 1, mask=there, other=0.0)
            kept = there[:, None] & inside[None, :]
            values = tl.load(parts + place[:, None] * D + width[None, :], mask=kept, other=0.0)  # [BLOCK_S, BLOCK_D]
            new_largest = tl.maximum(largest, tl.max(theirs, 0))
            anchor = tl.where(new_largest == -float("inf"), 0.0, new_largest)  # no part has seen a key yet
            fade = tl.exp2(largest - anchor)
            weight = tl.exp2(theirs - anchor)
            total = total * fade + tl.sum(totals * weight, 0)
            joined = joined * fade + tl.sum(values * weight[:, None], 0)
            largest = new_largest
        query = ((first_row + member // GROUP).to(tl.int64) * KH * GROUP + kv_head * GROUP + member % GROUP) * D
        result = joined / tl.where(total == 0.0, 1.0, total)
        tl.store(out + query + width, result.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParameters:
    """Parameters of the kernel, as the operator table chooses them."""

    block_m: int = 64
    """Queries of a tile."""
    block_n: int = 64
    """Keys of a tile, at most 32 beyond width 128."""
    splits: int = 0
    """Parts into which every tile is split; 0: as many as fill the device."""
    num_warps: int = 0
    """0: chosen by the size of a tile."""
    num_stages: int = 2
    apart: int = 0
    """1 for separate launches of large and small tiles, where a pass has both."""


def packed_attention(layout: PackedLayout, kv: KVSlots, **tuning: int) -> Attend:  # noqa: ARG001 - the layout says all
    """tuning: fields of `AttentionParameters`."""
    run = _Launch(layout, AttentionParameters(**tuning))

    def attend(q: Tensor, layer: DenseLayer) -> Tensor:
        return run(q, Stored(form=AS_THEY_ARE, numbers=(layer.keys, layer.values)))

    return attend


def packed_attention_scaled(layout: PackedLayout, kv: KVSlots, **tuning: int) -> Attend:  # noqa: ARG001 - the layout says all
    """Attention over slots of int8 or e4m3 and their scales; products in the dtype of the queries.

    tuning: fields of `AttentionParameters`.
    """
    run = _Launch(layout, AttentionParameters(**tuning))

    def attend(q: Tensor, layer: ScaledLayer) -> Tensor:
        scales = layer.key_scales, layer.value_scales
        return run(q, Stored(form=SCALED, numbers=(layer.keys, layer.values), scales=scales))

    return attend


def packed_attention_int4(layout: PackedLayout, kv: KVSlots, **tuning: int) -> Attend:  # noqa: ARG001 - the layout says all
    """Attention of causal rows over slots of 4 bits; ConfigError for a layout with `visibility`.

    tuning: fields of `AttentionParameters` but for block_n: a block of keys is a group. With 64 queries in a tile,
    heads of 128 take all registers of sm_87.
    """
    check_causal(layout)
    run = _Launch(layout, AttentionParameters(**{"block_m": 32, "block_n": GROUP, **tuning}))

    def attend(q: Tensor, layer: Int4Layer) -> Tensor:
        (k_steps, k_offsets), (v_steps, v_offsets) = layer.key_grids.unbind(), layer.value_grids.unbind()
        stored = Stored(
            form=FOUR_BITS,
            numbers=(layer.keys, layer.values),
            scales=(k_steps, v_steps),
            offsets=(k_offsets, v_offsets),
            exact=layer.exact,
        )
        return run(q, stored)

    return attend


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The slots of a layer, of keys and of values. numbers [S, T, KH, D]; scales [S, T, KH], where they have some.

    FOUR_BITS: as in an `Int4Layer`: codes, the steps and offsets of their grids, and exact keys.
    """

    form: int
    numbers: Pair
    scales: Pair | None = None
    offsets: Pair | None = None
    exact: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors in the order of the kernel; any tensor in place of one that is not read."""
        unread, exact = self.numbers, self.numbers[0] if self.exact is None else self.exact
        return (*self.numbers, *(self.scales or unread), *(self.offsets or unread), exact)


class _Launch:
    """Attention of one layout; its tiles and the room for parts serve all layers and all passes that replay it."""

    def __init__(self, layout: PackedLayout, tuning: AttentionParameters) -> None:
        self._layout = layout
        self._tuning = tuning

    def __call__(self, q: Tensor, stored: Stored) -> Tensor:
        """q [L_Q, H, D] → [L_Q, H, D]"""
        layout, tuning = self._layout, self._tuning
        (_, capacity, kv_heads, _), width = stored.numbers[0].shape, q.shape[2]
        group = q.shape[1] // kv_heads
        block_n = min(tuning.block_n, 32) if width > 128 else tuning.block_n
        q = q.contiguous()
        out = torch.empty_like(q)
        if not len(q):
            return out
        block_m = max(tuning.block_m, power_of_two(group))  # a tile holds at least a row
        tiles, room = self._work(kv_heads, group, width, block_m, q.device)
        shape, (visibility, seen) = (kv_heads, group, width, TILE_FIELDS), _seen(layout)
        block_d, wide = power_of_two(width), INTERPRETED and q.dtype == torch.bfloat16
        for some, sizes in _launches(tiles, apart=bool(tuning.apart)):
            _attend[(len(some), kv_heads)](
                q, *stored.tensors, layout.row_slot, layout.row_position, *seen, some, out, *room,
                capacity, LOG2_E / math.sqrt(width), *shape, sizes, block_m, SMALL, block_n, block_d,
                stored.form, wide, visibility,
                num_warps=tuning.num_warps or warps_of(width, small=sizes == ONLY_SMALL), num_stages=tuning.num_stages,
            )  # fmt: skip
        if len(tiles.joins):
            _join[(len(tiles.joins), kv_heads, tiles.members)](*room, tiles.joins, out, *shape, block_d, JOINED)
        return out

    def _work(
        self, kv_heads: int, group: int, width: int, block_m: int, device: torch.device
    ) -> tuple[Tiles, tuple[Tensor, Tensor]]:
        """Cached by the layout: a graph must not contain a copy from the host."""
        splits = self._tuning.splits

        def make() -> tuple[Tiles, tuple[Tensor, Tensor]]:
            tiles = Tiles.of(
                self._layout, device, kv_heads=kv_heads, group=group, block_m=block_m, splits=splits,
                multiprocessors=multiprocessors(device),
            )  # fmt: skip
            return tiles, _room(tiles.lines, width, device)

        return self._layout.kept(("triton tiles", kv_heads, group, width, block_m, splits), make)


def _seen(layout: PackedLayout) -> tuple[int, tuple[Tensor, Tensor, Tensor]]:
    """SEES of the kernel, with ranges, bits and the places of the first bits; any tensor in place of one that is
    not read.
    """
    visibility, unread = layout.visibility, layout.row_slot
    if visibility is None:
        return 0, (unread, unread, unread)
    if visibility.tree is None or visibility.first is None:
        return 1, (visibility.ranges, unread, unread)
    return 2, (visibility.ranges, visibility.tree, visibility.first)


def _launches(tiles: Tiles, *, apart: bool) -> list[tuple[Tensor, int]]:
    """The tiles of each launch, and their sizes: one launch where they are all large or all small."""
    if not tiles.large or tiles.large == len(tiles.attended):
        return [(tiles.attended, ONLY_LARGE if tiles.large else ONLY_SMALL)]
    if apart:
        return [(tiles.attended[: tiles.large], ONLY_LARGE), (tiles.attended[tiles.large :], ONLY_SMALL)]
    return [(tiles.attended, BOTH)]


def _room(rows: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Partial sums [rows, D], and the largest score and sum of weights of each [rows, 2]."""
    return torch.empty(max(rows, 1), width, device=device), torch.empty(max(rows, 1), 2, device=device)
