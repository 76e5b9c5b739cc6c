"""The places that the rows of a pass see in their slots. Without one of these values a row sees all up to itself.

A row sees a place that lies in one of its two ranges, or that is the place of a row of the same segment whose bit is
set. Every row sees at least one place. Values of one span are made on the host, and `Visibility.joined` makes those of
a pass. `DraftTrees` are the trees in which the drafts of each slot stand, on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

TREE_ROWS = 63  # rows of a segment that bits can name


class SpanOfRows(Protocol):
    """A segment of a pass: its rows enter places start .. start+length of a slot."""

    @property
    def start(self) -> int: ...

    @property
    def length(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Visibility:
    """The places that rows see: tensors on the device, so that a graph can be replayed with other contents."""

    ranges: Tensor
    """[n, 2, 2]: int64, start and stop of two half-open ranges of places; an empty one is 0, 0."""
    tree: Tensor | None = None
    """[n]: int64 bits; bit i stands for the place first + i. None where no row has bits."""
    first: Tensor | None = None
    """[n]: int64, the place of the first row of each row's segment; None without `tree`. Like all tensors here, it
    begins at a multiple of 16 bytes, as in `PackedLayout`.
    """

    @classmethod
    def joined(cls, parts: Sequence[Visibility], device: torch.device) -> Visibility:
        """The values of the spans of a pass, one after the other, in one upload."""
        ranges = torch.cat([part.ranges for part in parts])
        rows = len(ranges)
        # One upload: ranges first, then (only where some span is a tree) bits and first places, each of even length.
        pieces = [ranges.flatten()]
        if any(part.tree is not None for part in parts):
            for name in ("tree", "first"):
                for part in parts:
                    own = getattr(part, name)
                    pieces.append(torch.zeros(len(part.ranges), dtype=torch.long) if own is None else own)
                pieces.append(torch.zeros(rows % 2, dtype=torch.long))
        numbers = torch.cat(pieces)
        numbers = (numbers.pin_memory() if device.type == "cuda" else numbers).to(device, non_blocking=True)
        bits = numbers[4 * rows :].view(2, -1)[:, :rows] if len(pieces) > 1 else (None, None)
        return cls(numbers[: 4 * rows].view(rows, 2, 2), bits[0], bits[1])

    def of_rows(self, rows: Tensor | slice) -> Visibility:
        """The values of some rows; bits keep their meaning."""
        if self.tree is None or self.first is None:
            return Visibility(self.ranges[rows])
        return Visibility(self.ranges[rows], self.tree[rows], self.first[rows])

    def mask(self, places: int) -> Tensor:
        """[n, places] bool: the places that each row sees."""
        place = torch.arange(places, device=self.ranges.device)
        starts, stops = self.ranges[..., 0, None], self.ranges[..., 1, None]
        seen = ((place >= starts) & (place < stops)).any(1)
        if self.tree is None or self.first is None:
            return seen
        bit = place - self.first[:, None]
        named = (self.tree[:, None] >> bit.clamp(0, TREE_ROWS - 1)) & 1
        return seen | ((bit >= 0) & (bit < TREE_ROWS) & (named == 1))

    def causal(self, row_position: Tensor) -> Tensor:
        """[n] bool: the rows whose ranges are that of a causal row, and that have no bits."""
        own = torch.zeros_like(self.ranges)
        own[:, 0, 1] = row_position + 1
        alike = (self.ranges == own).flatten(1).all(1)
        return alike if self.tree is None else alike & (self.tree == 0)


def causal(span: SpanOfRows) -> Visibility:
    """Every row sees all up to itself."""
    return ranges(span, stop=places(span) + 1)


def before(span: SpanOfRows, stop: int) -> Visibility:
    """Every row sees only places 0 .. stop, as in a layer that reads a prefix."""
    return ranges(span, stop=stop)


def bidirectional_prefix(span: SpanOfRows, prefix: int) -> Visibility:
    """Rows at places 0 .. prefix see all of these; later rows are causal. ValueError where the prefix is cut off."""
    end = span.start + span.length
    if 0 < span.start < prefix or (span.start == 0 and end < prefix):
        raise ValueError(f"a bidirectional prefix of {prefix} rows must enter as a whole, not {span.start} .. {end}")
    return ranges(span, stop=(places(span) + 1).clamp(min=prefix))


def places(span: SpanOfRows) -> Tensor:
    """[n] int64: the place of each row."""
    return torch.arange(span.start, span.start + span.length)


def ranges(span: SpanOfRows, *, stop: Tensor | int, second: tuple[Tensor | int, Tensor | int] = (0, 0)) -> Visibility:
    """Every row sees the range 0 .. stop, and a second one; each a number, or one for each row [n]."""
    ranges = torch.zeros(span.length, 2, 2, dtype=torch.long)
    ranges[:, 0, 1], ranges[:, 1, 0], ranges[:, 1, 1] = stop, *second
    return Visibility(ranges)


class DraftTrees:
    """Row 0 of a verification is the newest token, the root; every other row is a draft and follows an earlier row.

    parent [S, R]: the row that each follows, 0 of the root. depth [S, R]: rows before it on its path. bits [S, R]:
    int64; bit j of row i is set where row j is on the path to row i, itself included. All int64.
    """

    def __init__(self, slots: int, rows: int, device: torch.device) -> None:
        self.parent = torch.zeros(slots, rows, dtype=torch.long, device=device)
        self.depth = torch.zeros_like(self.parent)
        self.bits = torch.ones_like(self.parent)

    def plant(self, slots: Tensor, parents: Tensor, levels: int) -> None:
        """Set the trees of slots [N]. parents [N, r - 1], r at most R: the row that each draft follows. levels: their
        greatest depth.
        """
        row = torch.arange(parents.shape[1] + 1, device=parents.device).expand(len(parents), -1)
        parent = torch.cat([torch.zeros_like(parents[:, :1]), parents], dim=1)
        here, depth, bits = row, torch.zeros_like(parent), torch.ones_like(parent) << row
        # `here` climbs from every row to the root, one level at a time; a row's bits collect the rows it passes.
        for _ in range(levels):
            depth = depth + (here > 0)
            here = parent.gather(1, here)
            bits = bits | (torch.ones_like(here) << here)
        for state, values in ((self.parent, parent), (self.depth, depth), (self.bits, bits)):
            state[slots, : values.shape[1]] = values
