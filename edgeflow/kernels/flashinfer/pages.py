"""Slots seen as pages: the tables that FlashInfer's paged wrappers are planned with.

A store's slots of T positions are pages of P positions, P a divisor of T: page j of slot s is page s * T / P + j of the
same memory. FlashInfer divides long slots among blocks by whole pages, so pages are short; a capacity that is a
multiple of PAGE_ROWS gives the fewest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from edgeflow.kernels.kv.layout import Span
from edgeflow.kernels.kv.slots import PAGE_ROWS


@dataclass(frozen=True, slots=True)
class PageTable:
    """The N spans of a pass, in their order.

    rows [N + 1]: the first query of each; pages [N + 1]: its first entry in `indices`; last [N]: positions used of its
    last page, 1 .. P; ends [N]: keys that its last query sees.
    """

    rows: list[int]
    pages: list[int]
    indices: list[int]
    last: list[int]
    ends: list[int]

    @classmethod
    def of(cls, spans: Sequence[Span], capacity: int) -> PageTable:
        """capacity: T, positions per slot."""
        size = page_size(capacity)
        rows, pages, indices = [0], [0], list[int]()
        ends = [span.start + span.length for span in spans]
        for span, end in zip(spans, ends, strict=True):
            first = span.slot * (capacity // size)
            indices += range(first, first + -(-end // size))
            rows.append(rows[-1] + span.length)
            pages.append(len(indices))
        return cls(rows, pages, indices, [(end - 1) % size + 1 for end in ends], ends)


def page_size(capacity: int) -> int:
    """P: the largest power of two up to PAGE_ROWS that divides a slot's capacity."""
    return math.gcd(capacity, PAGE_ROWS)


def as_pages(slots: Tensor) -> Tensor:
    """[S, T, KH, D] → [S * T / P, P, KH, D], the same memory."""
    return slots.view(-1, page_size(slots.shape[1]), *slots.shape[2:])
