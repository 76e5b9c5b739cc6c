"""The work list of packed attention: which tile of queries each block of threads computes, and over which keys.

A list follows from the lengths and the reach of a layout, never from slots or positions, so that it stays valid for
every pass that replays the same graph. A span of at most SMALL queries, such as a decode row, is one small tile: small
tiles are split along the keys until they fill the device, and a second launch joins their parts. All tiles of a longer
span count as large, its last one too, so that a prompt of any length is served by the same compiled kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.kernels.kv.layout import PackedLayout, on_device
from edgeflow.kernels.triton.launch import cdiv

SMALL = 16  # queries: the fewest rows that a tensor core multiplies
TILE_FIELDS = 8  # first row, rows, split, splits, part, and padding: every row of the list is aligned to 32 bytes
WAVES = 2  # blocks per multiprocessor that split tiles aim at
USUAL_KEYS = 256  # per part: the sums of a part are written and read again, so short parts cost more than they gain
LEAST_KEYS = 64  # per part: one block of keys, where longer parts would leave multiprocessors idle
MOST_KEYS = 2048  # per part: one decode row over a long slot must not outlast the rest of the launch


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
    parts: int
    """Partial results per KV head."""

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
        """group: queries per KV head of a row; splits: parts of every small tile, 0 for `parts_of`."""
        large: list[tuple[int, ...]] = []
        narrow: list[tuple[int, int]] = []
        row = 0
        for length in layout.lengths:
            if length * group <= SMALL:
                narrow.append((row, length))
            else:
                step = block_m // group
                large += [(row + at, min(step, length - at), 0, 1, 0) for at in range(0, length, step)]
            row += length
        pieces = splits or parts_of((len(large) + len(narrow)) * kv_heads, layout.reach, multiprocessors)
        small = [
            (first, count, split, pieces, index * pieces)
            for index, (first, count) in enumerate(narrow)
            for split in range(pieces)
        ]
        joins = small[::pieces] if pieces > 1 else []
        rows = [(*fields, *[0] * (TILE_FIELDS - len(fields))) for fields in large + small + joins]
        table = on_device(rows, device, torch.int32).view(-1, TILE_FIELDS)
        attended = len(large) + len(small)
        members = max((count * group for _, count in narrow), default=0)
        return cls(table[:attended], table[attended:], len(large), members, len(joins) * pieces)


def parts_of(blocks: int, reach: int, multiprocessors: int) -> int:
    """Parts of each small tile, over at most `reach` keys.

    blocks: of threads that the pass has without splitting, tiles times KV heads. Parts of USUAL_KEYS up to WAVES blocks
    per multiprocessor; shorter ones only where multiprocessors would have no block at all.
    """
    parts = min(cdiv(WAVES * multiprocessors, blocks), cdiv(reach, USUAL_KEYS))
    if parts * blocks < multiprocessors:
        parts = min(cdiv(multiprocessors, blocks), cdiv(reach, LEAST_KEYS))
    return max(parts, cdiv(reach, MOST_KEYS), 1)
