"""The one KV store: fixed slots in every layer, reserved once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from edgeflow.kernels.shift_kv import ShiftKV, strided

Kept = TypeVar("Kept")


class KVSlots:
    """Keys and values `data [layers, 2, S, T, KH, D]`: S slots of T positions."""

    def __init__(
        self,
        layers: int,
        slots: int,
        capacity: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        shift: ShiftKV = strided,
    ) -> None:
        self.data = torch.zeros(layers, 2, slots, capacity, kv_heads, head_dim, dtype=dtype, device=device)
        self._shift = shift
        self._kept: dict[str, Any] = {}
        self._layers = [(layer[0], layer[1]) for layer in self.data]

    @property
    def slots(self) -> int:
        return self.data.shape[2]

    @property
    def capacity(self) -> int:
        """T, positions of a slot."""
        return self.data.shape[3]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, each [S, T, KH, D]."""
        return self._layers[index]

    def copy_rows(self, source: int, target: int, length: int) -> None:
        """The first `length` rows of a slot enter another, in every layer."""
        self._shift(self.data, source, target, length)

    def kept(self, name: str, make: Callable[[KVSlots], Kept]) -> Kept:
        """What an operator keeps from pass to pass over this store, such as a workspace; made when first asked for."""
        if name not in self._kept:
            self._kept[name] = make(self)
        kept: Kept = self._kept[name]
        return kept
