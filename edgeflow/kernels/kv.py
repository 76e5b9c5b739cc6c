"""The one KV store: fixed slots in every layer, reserved once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from edgeflow.kernels.shift_kv import ShiftKV, strided

Kept = TypeVar("Kept")
Pair = tuple[Tensor, Tensor]
Store = Pair | tuple[Pair, Pair]
"""A layer as its operators take it: keys and values [S, T, KH, D]; or in int8 both, and both scales [S, T, KH]."""
SCALE_BYTES = 4
PAGE_ROWS = 16  # rows of the longest page that a slot divides into


def rounded_capacity(positions: int) -> int:
    """The next multiple of 16 positions, so that a slot divides into whole pages of 16 rows."""
    return -(-positions // PAGE_ROWS) * PAGE_ROWS


class KVSlots:
    """Keys and values `data [layers, 2, S, T, KH, D]`: S slots of T positions.

    dtype: what the model computes in, and keeps unless `int8`. Then each row of D numbers is 8-bit whole numbers times
    one of `scales [layers, 2, S, T, KH, 1]` (float32), and other operators write and read it: kernels/int8_kv.py.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        capacity: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        shift: ShiftKV = strided,
        int8: bool = False,
    ) -> None:
        shape = layers, 2, slots, capacity, kv_heads
        self.dtype = dtype
        self.data = torch.zeros(*shape, head_dim, dtype=torch.int8 if int8 else dtype, device=device)
        self.scales = torch.zeros(*shape, 1, device=device) if int8 else None
        self._shift = shift
        self._kept: dict[str, Any] = {}
        self._layers = [self._store_of(index) for index in range(layers)]

    @staticmethod
    def position_bytes(layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, *, int8: bool = False) -> int:
        """Memory of one position of a slot."""
        return layers * 2 * kv_heads * (head_dim + SCALE_BYTES if int8 else head_dim * dtype.itemsize)

    @property
    def slots(self) -> int:
        return self.data.shape[2]

    @property
    def capacity(self) -> int:
        """T, positions of a slot."""
        return self.data.shape[3]

    @property
    def int8(self) -> bool:
        return self.scales is not None

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def layer(self, index: int) -> Store:
        return self._layers[index]

    def copy_rows(self, source: int, target: int, length: int) -> None:
        """The first `length` rows of a slot enter another, in every layer."""
        self._shift(self.data, source, target, length)
        if self.scales is not None:
            self._shift(self.scales, source, target, length)

    def kept(self, name: str, make: Callable[[KVSlots], Kept]) -> Kept:
        """A value that an operator caches across passes over this store, such as a workspace; made at first use."""
        if name not in self._kept:
            self._kept[name] = make(self)
        kept: Kept = self._kept[name]
        return kept

    def _store_of(self, index: int) -> Store:
        numbers = self.data[index, 0], self.data[index, 1]
        if self.scales is None:
            return numbers
        return numbers, (self.scales[index, 0, ..., 0], self.scales[index, 1, ..., 0])
