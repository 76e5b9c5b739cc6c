"""How many rows the prefills of a replayed pass are padded to: few shapes, and never a further GEMM tile."""

from __future__ import annotations

from collections.abc import Sequence

ROW_STEP = 16
"""The rows of a pass, decode rows included, are padded to a multiple of it."""
TILE_ROWS = 64
"""Rows of the smallest tile of a large GEMM; larger ones are multiples of it, and it is one of ROW_STEP."""


def padded_prefills(prefills: Sequence[int], decodes: int, capacity: int) -> tuple[int, ...]:
    """Rows of each prefill with its padding, at most `capacity`, in a pass with so many decode rows.

    The last prefill completes the pass to a multiple of ROW_STEP. Those before it are padded to multiples of ROW_STEP
    as long as the pass stays within the tiles that it fills anyway.
    """
    if not prefills:
        return ()
    *others, last = prefills
    room = -sum((*prefills, decodes)) % TILE_ROWS
    padded: list[int] = []
    for rows in others:
        added = min(-rows % ROW_STEP, capacity - rows)
        added = added if added <= room else 0
        room -= added
        padded.append(rows + added)
    missing = -sum((*padded, last, decodes)) % ROW_STEP
    return (*padded, min(last + missing, capacity))
