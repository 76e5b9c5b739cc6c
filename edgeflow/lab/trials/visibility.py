"""Visibilities of rows in trials, in addition to those of served passes (kernels/kv/visibility.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgeflow.kernels.kv.visibility import TREE_ROWS, SpanOfRows, Visibility, places, ranges


def window(span: SpanOfRows, width: int, sinks: int = 0) -> Visibility:
    """Every row sees the last `width` places up to itself, and the first `sinks` places of its slot."""
    stop = places(span) + 1
    start = (stop - width).clamp(min=0)
    return ranges(span, stop=start.clamp(max=sinks), second=(start, stop))


def bidirectional_suffix(span: SpanOfRows, prefix: int) -> Visibility:
    """Every row sees places 0 .. prefix and all rows of its span."""
    return ranges(span, stop=prefix, second=(span.start, span.start + span.length))


def tree_of_drafts(span: SpanOfRows, parents: Sequence[int]) -> Visibility:
    """Every row sees the rows before its span, its ancestors and itself.

    parents: for each row the earlier row of the span that it follows, or -1. ValueError for others, and for more than
    63 rows.
    """
    if len(parents) != span.length or span.length > TREE_ROWS:
        raise ValueError(
            f"a tree of {len(parents)} rows in a span of {span.length}: at most {TREE_ROWS}, of equal number"
        )
    bits: list[int] = []
    for row, parent in enumerate(parents):
        if not -1 <= parent < row:
            raise ValueError(f"row {row} of a tree follows row {parent}: it must be an earlier row, or -1")
        bits.append(1 << row | (bits[parent] if parent >= 0 else 0))
    first = torch.full((span.length,), span.start)
    return Visibility(ranges(span, stop=span.start).ranges, torch.tensor(bits), first)
