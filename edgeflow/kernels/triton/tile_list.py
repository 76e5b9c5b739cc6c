"""The work list of packed attention: which tile of queries each block of threads computes, and over which keys.

A list follows from the lengths and the reach of a layout, never from slots or positions, so that it stays valid for
every pass that replays the same graph. Tiles are split along the keys until they fill the device, and a second launch
joins their parts. A span of at most SMALL queries, such as a decode row, is one small tile, several of which run on a
multiprocessor at once. All tiles of a longer span count as large, its last one too, so that a prompt of any length is
served by the same compiled kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.kernels.kv.layout import PackedLayout, on_device
from edgeflow.kernels.triton.launch import cdiv

SMALL = 16  # queries: the fewest rows that a tensor core multiplies
TILE_FIELDS = 8  # first row, rows, split, splits, line, and padding: every row of the list is aligned to 32 bytes
WAVES = 2  # blocks per multiprocessor that split tiles aim at
USUAL_KEYS = 256  # per part: the sums of a part are written and read again, so short parts cost more than they gain
LEAST_KEYS = 64  # per part: one block of keys, where longer parts would leave multiprocessors idle
MOST_KEYS = 2048  # per part: one decode row over a long slot must not outlast the rest of the launch
SUMS_KEYS = 128  # in the time of which the sums of a large tile's part are written and read again


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles that the programs of a kernel work through."""

    attended: Tensor
    """[n, TILE_FIELDS] int32 on the device: the tiles that attend."""
    joins: Tensor
    """[n, TILE_FIELDS] int32 on the device: the tiles whose parts are joined."""
    large: int
    """The number of large tiles, which come first in `attended`."""
    members: int
    """Queries of the largest joined tile."""
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
        """group: queries per KV head of a row; splits: parts of every tile, 0 for `parts_of` and `large_parts_of`."""
        large: list[tuple[int, int]] = []
        small: list[tuple[int, int]] = []
        row = 0
        for length in layout.lengths:
            step = length if length * group <= SMALL else block_m // group
            tiles = small if length * group <= SMALL else large
            tiles += [(row + at, min(step, length - at)) for at in range(0, length, max(step, 1))]
            row += length
        blocks = (len(large) + len(small)) * kv_heads
        of_large = splits or large_parts_of(blocks, layout.reach, multiprocessors)
        of_small = splits or parts_of(blocks, layout.reach, multiprocessors)
        line, attended, joins = 0, list[tuple[int, ...]](), list[tuple[int, ...]]()
        for first, rows, parts in [*((*each, of_large) for each in large), *((*each, of_small) for each in small)]:
            split = [(first, rows, index, parts, line, 0, 0, 0) for index in range(parts)]
            attended += split
            if parts > 1:
                joins += split[:1]
                line += parts * kv_heads * rows * group
        table = on_device(attended + joins, device, torch.int32).view(-1, TILE_FIELDS)
        members = max((rows * group for _, rows, *_ in joins), default=0)
        return cls(table[: len(attended)], table[len(attended) :], len(large) * of_large, members, line)


def large_parts_of(blocks: int, reach: int, multiprocessors: int) -> int:
    """Parts of each large tile, over at most `reach` keys.

    blocks: as in `parts_of`. A multiprocessor computes one large tile at a time, so the parts are those of a wave or
    two that take the least time, the sums of a part counted as SUMS_KEYS keys. Where multiprocessors are busy without,
    or nearly all of them, tiles stay whole.
    """
    most = cdiv(reach, LEAST_KEYS)
    choices = [1, *(min(wave * multiprocessors // blocks, most) for wave in range(1, WAVES + 1))]
    times = {
        parts: cdiv(parts * blocks, multiprocessors) * (cdiv(reach, parts) + SUMS_KEYS * (parts > 1))
        for parts in choices
        if parts
    }
    return min(times, key=lambda parts: times[parts])


def parts_of(blocks: int, reach: int, multiprocessors: int) -> int:
    """Parts of each small tile, over at most `reach` keys.

    blocks: of threads that the pass has without splitting, tiles times KV heads. Parts of USUAL_KEYS up to WAVES blocks
    per multiprocessor; shorter ones only where multiprocessors would have no block at all.
    """
    parts = min(cdiv(WAVES * multiprocessors, blocks), cdiv(reach, USUAL_KEYS))
    if parts * blocks < multiprocessors:
        parts = min(cdiv(multiprocessors, blocks), cdiv(reach, LEAST_KEYS))
    return max(parts, cdiv(reach, MOST_KEYS), 1)
