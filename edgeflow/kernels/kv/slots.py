"""The one KV store: fixed slots in every layer, reserved once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from edgeflow.kernels.kv.formats import DENSE, KVFormat
from edgeflow.kernels.kv.shift_kv import ShiftKV, strided

Kept = TypeVar("Kept")
PAGE_ROWS = 16  # rows of the longest page that a slot divides into


def rounded_capacity(positions: int) -> int:
    """The next multiple of 16 positions, so that a slot divides into whole pages of 16 rows."""
    return -(-positions // PAGE_ROWS) * PAGE_ROWS


class KVSlots:
    """S slots of T positions in every layer, stored in a format.

    dtype: what the model computes in. tensors: what the format allocates. data [layers, 2, S, T, KH, D]: the first of
    them, keys and values as they are stored.
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
        format: KVFormat = DENSE,
    ) -> None:
        self.dtype = dtype
        self.format = format
        self.tensors = format.allocate((layers, 2, slots, capacity, kv_heads), head_dim, dtype, device)
        self.data = self.tensors[0]
        self._shift = shift
        self._kept: dict[str, Any] = {}
        self._layers = [format.layer(self.tensors, index) for index in range(layers)]

    @property
    def slots(self) -> int:
        return self.data.shape[2]

    @property
    def capacity(self) -> int:
        """T, positions of a slot."""
        return self.data.shape[3]

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.tensors)

    def layer(self, index: int) -> Any:
        """A layer as the operators of the format take it."""
        return self._layers[index]

    def copy_rows(self, source: int, target: int, length: int) -> None:
        """The first `length` rows of a slot enter another, in every layer."""
        for each in self.tensors:
            self._shift(each, source, target, length)

    def kept(self, name: str, make: Callable[[KVSlots], Kept]) -> Kept:
        """A value that an operator caches across passes over this store, such as a workspace; made at first use."""
        if name not in self._kept:
            self._kept[name] = make(self)
        kept: Kept = self._kept[name]
        return kept
