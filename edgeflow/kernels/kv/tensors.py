"""The tensors of a KV store: what a format allocates, and how much of each a move of positions carries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """The sizes of a store besides its number of slots. capacity: positions of a slot; dtype: of the model."""

    layers: int
    capacity: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype


class UnfoldedFormat:
    """Common part of KV formats whose slots hold every position of a sequence (formats.KVFormat)."""

    memory = None

    def longest(self, capacity: int) -> int:
        return capacity

    def turned(self, capacity: int) -> int:
        return capacity

    def reusable(self, known: int) -> int:
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTensor:
    """A tensor of a store: [layers, kinds, S, lines, heads, width].

    positions: how many positions each line stands for: 1, a group, or the capacity for one line per slot.
    moved: False for what is used within one layer of a pass only; moves of positions leave it where it is.
    """

    layers: int
    kinds: int
    heads: int
    width: int
    dtype: torch.dtype
    positions: int = 1
    moved: bool = True

    def lines(self, positions: int) -> int:
        """Lines of the first `positions` positions of a slot."""
        return -(-positions // self.positions)

    def slot_bytes(self, capacity: int) -> int:
        """Memory of a slot of `capacity` positions."""
        return self.layers * self.kinds * self.lines(capacity) * self.heads * self.width * self.dtype.itemsize

    def allocate(self, slots: int, capacity: int, device: torch.device) -> Tensor:
        shape = self.layers, self.kinds, slots, self.lines(capacity), self.heads, self.width
        return torch.zeros(shape, dtype=self.dtype, device=device)

    def line_moves(self, moves: Tensor) -> Tensor:
        """Moves [M, 3] of positions (kernels/kv/shift_kv.py) as moves of lines, on the same device."""
        if self.positions == 1:
            return moves
        return torch.cat([moves[:, :2], -(-moves[:, 2:] // self.positions)], dim=1)
