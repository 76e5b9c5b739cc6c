"""Keys and values in 4 bits: keys per channel over groups of 32 positions, values per position and head.

The keys of a group are kept as they are until it is full. The row at position p sees those of its unfinished group as
they are, and those of every group before it in 4 bits: `in_four_bits(p)` places. So what a row sees does not depend
on how the rows before it were cut into passes. A sequence may write positions again, from at most 32 before the
furthest end of its passes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

GROUP = 32
RING = 2 * GROUP
"""Exact keys that a layer keeps of every slot: of two groups, since drafts may reach into the next one."""
LARGEST = 15
WIDEST = 1 << 14
"""The most steps between zero and the numbers of a channel: its step is no smaller, so that int16 holds its offset."""
ROUNDED_UP = 1 + 2.0**-8

Position = TypeVar("Position", int, Tensor)


def in_four_bits(position: Position) -> Position:
    """The number of places, from the first on, whose keys the row at this position sees in 4 bits."""
    return (position + 1) // GROUP * GROUP


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid of codes 0 to 15: a code stands for (code + offset) * step. Steps and offsets are int16."""

    step: Tensor
    """The step, as the bits of a bfloat16."""
    offset: Tensor

    @classmethod
    def over(cls, numbers: Tensor, dim: int) -> Grid:
        """A grid that covers the numbers along a dimension, which stays with size 1. NaN stays NaN."""
        low, high = numbers.amin(dim, keepdim=True).float(), numbers.amax(dim, keepdim=True).float()
        step = torch.maximum((high - low) / LARGEST, torch.maximum(low.abs(), high.abs()) / WIDEST)
        step = (step * ROUNDED_UP).to(torch.bfloat16)
        offset = (low / _divisor(step) + 0.5).floor().nan_to_num(0.0).to(torch.int16)
        return cls(step.view(torch.int16), offset)

    def codes(self, numbers: Tensor) -> Tensor:
        """The codes of the nearest numbers of the grid: uint8, one in each byte."""
        steps = numbers.to(torch.float32, copy=True).div_(_divisor(self.step.view(torch.bfloat16)))
        return steps.add_(0.5).floor_().sub_(self.offset).clamp_(0, LARGEST).nan_to_num_(0.0).to(torch.uint8)

    def numbers(self, codes: Tensor) -> Tensor:
        """The numbers that codes stand for, in float32."""
        return (codes + self.offset).float() * self.step.view(torch.bfloat16).float()


def packed(codes: Tensor) -> Tensor:
    """Codes [.., D], two in each byte [.., D/2]: that of number i in its low bits, that of i + D/2 in its high bits."""
    low, high = codes.chunk(2, dim=-1)
    return low | high << 4


def unpacked(codes: Tensor) -> Tensor:
    """The codes [.., D] that `packed` has put into bytes [.., D/2]."""
    return torch.cat([codes & LARGEST, codes >> 4], dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4Layer:
    """The slots of one layer in 4 bits.

    keys, values [S, T, KH, D/2] uint8: codes, two per byte. key_grids [2, S, groups, KH, D], value_grids [2, S, T, KH]
    int16: steps and offsets.
    """

    keys: Tensor
    values: Tensor
    key_grids: Tensor
    value_grids: Tensor
    newest: Tensor
    """[S, RING, KH, D]: the keys last written in each slot, each at its position modulo RING."""
    exact: Tensor
    """[S, T rounded up to groups, KH, D]: the keys of the rows of a pass and of the groups in which they begin;
    shared by all layers, each of which writes it before it attends.
    """

    def read(self, slots: int | Tensor, places: slice | Tensor, rows: int | Tensor) -> tuple[Tensor, Tensor]:
        """As `KVLayer.read`, for rows that the pass has written."""
        place = torch.arange(self.keys.shape[1], device=self.keys.device)[places]
        if isinstance(slots, Tensor):
            slots = slots[:, None]
        own = in_four_bits(rows)[:, None] if isinstance(rows, Tensor) else in_four_bits(rows)
        grids = Grid(*self.key_grids[:, slots, place // GROUP])
        keys = torch.where(
            (place < own)[..., None, None],
            grids.numbers(unpacked(self.keys[slots, place])),
            self.exact[slots, place].float(),
        )
        grids = Grid(*self.value_grids[:, slots, place][..., None])
        return keys, grids.numbers(unpacked(self.values[slots, place]))


def _divisor(step: Tensor) -> Tensor:
    """The step, or 1 where all numbers are zero."""
    return torch.where(step == 0, 1.0, step.float())
