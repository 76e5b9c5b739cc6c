"""The work list of packed attention: which tile of queries each block of threads computes, and over which keys.

A list follows from the lengths and the reach of a layout, never from slots or positions, so that it stays valid for
every pass that replays the same graph. Tiles are split along the keys until they fill the device. A span of at most
SMALL queries, such as a decode row, is one small tile, several of which run on a multiprocessor at once. Longer spans
are cut into tiles of block_m queries, or of SMALL where those leave multiprocessors idle: one block joins a tile, and
has less to join. All tiles of a longer span count as large, whatever they hold, so that a prompt of any length is
served by the same compiled kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from edgeflow.kernels.kv.layout import PackedLayout, on_device
from edgeflow.kernels.triton.launch import cdiv

SMALL = 16  # queries: the fewest rows that a tensor core multiplies
TILE_FIELDS = 8  # first row, rows, split, splits, line, join, and padding: every row of the list is aligned to 32 bytes
WAVES = 2  # blocks per multiprocessor that split tiles aim at
USUAL_KEYS = 256  # per part: the sums of a part are written and read again, so short parts cost more than they gain
LEAST_KEYS = 64  # per part: one block of keys, where longer parts would leave multiprocessors idle
MOST_KEYS = 2048  # per part: one decode row over a long slot must not outlast the rest of the launch


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles that the programs of a kernel work through."""

    attended: Tensor
    """[n, TILE_FIELDS] int32 on the device: the tiles that attend."""
    joins: int
    """The number of tiles whose parts are joined."""
    large: int
    """The number of large tiles, which come first in `attended`."""
    lines: int
    """Partial results of a query: of all joined tiles, parts and KV heads."""

    @classmethod
    def of(
        cls,
        layout: PackedLayout,
        device: torch.device,
        *,
        kv_heads: int,
        group: int,
        block_m: int,
        splits: int,
        multiprocessors: int,
    ) -> Tiles:
        """group: queries per KV head of a row; splits: parts of every tile, 0 for `parts_of` and `long_parts_of`, which
        choose the size of tiles too."""
        spans = list(zip(accumulate(layout.lengths[:-1], initial=0), layout.lengths, strict=True))
        short = [(row, length) for row, length in spans if length * group <= SMALL]
        long = [(row, length) for row, length in spans if length * group > SMALL]

        def least(tiles: list[tuple[int, int]]) -> tuple[int, int]:
            blocks, queries = (len(tiles) + len(short)) * kv_heads, max(rows for _, rows in tiles) * group
            return long_parts_of(blocks, queries, layout.reach, multiprocessors)

        tiles = _cut(long, block_m // group)
        blocks, of_long = (len(tiles) + len(short)) * kv_heads, splits
        if tiles and not splits:
            time, of_long = least(tiles)
            if blocks < multiprocessors and group <= SMALL:
                fine = _cut(long, SMALL // group)
                fine_time, of_fine = least(fine)
                if fine_time < time:
                    tiles, of_long = fine, of_fine
        of_short = splits or parts_of(blocks, layout.reach, multiprocessors)
        line, joins, attended = 0, 0, list[tuple[int, ...]]()
        for first, rows, parts in [*((*each, of_long) for each in tiles), *((*each, of_short) for each in short)]:
            attended += [(first, rows, index, parts, line, joins, 0, 0) for index in range(parts)]
            if parts > 1:
                joins += 1
                line += parts * kv_heads * rows * group
        table = on_device(attended, device, torch.int32).view(-1, TILE_FIELDS)
        return cls(table, joins, len(tiles) * of_long, line)


def _cut(spans: list[tuple[int, int]], step: int) -> list[tuple[int, int]]:
    """First row and rows of tiles of `step` rows or fewer."""
    return [(row + at, min(step, length - at)) for row, length in spans for at in range(0, length, step)]


def long_parts_of(blocks: int, queries: int, reach: int, multiprocessors: int) -> tuple[int, int]:
    """The time of tiles of long spans, over at most `reach` keys, and the parts of each that take the least.

    blocks: as in `parts_of`; queries: of the largest tile. Time is counted in keys that a multiprocessor reads, as
    many bytes as the sums of a query. Parts make one wave of blocks, or two. Each block reads its keys and writes its
    sums; the last one of a tile reads those of all parts, at twice the rate, as few do so at a time.
    """
    most = cdiv(reach, LEAST_KEYS)
    choices = [1, *(min(wave * multiprocessors // blocks, most) for wave in range(1, WAVES + 1))]
    return min(
        (cdiv(parts * blocks, multiprocessors) * (cdiv(reach, parts) + sums) + parts * sums // 2, parts)
        for parts in choices
        if parts
        for sums in [queries * (parts > 1)]
    )


def parts_of(blocks: int, reach: int, multiprocessors: int) -> int:
    """Parts of each small tile, over at most `reach` keys.

    blocks: of threads that the pass has without splitting, tiles times KV heads. Parts of USUAL_KEYS up to WAVES blocks
    per multiprocessor; shorter ones only where multiprocessors would have no block at all.
    """
    parts = min(cdiv(WAVES * multiprocessors, blocks), cdiv(reach, USUAL_KEYS))
    if parts * blocks < multiprocessors:
        parts = min(cdiv(multiprocessors, blocks), cdiv(reach, LEAST_KEYS))
    return max(parts, cdiv(reach, MOST_KEYS), 1)
