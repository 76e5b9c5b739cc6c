"""KV formats: how slots store the keys and values of their positions.

A format is a value. It allocates the tensors of a store and gives operators a typed view of each layer. The operator
table finds by its name what writes it (`rope_write_kv`) and what attends over it (`packed_attention`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
Places = slice | Tensor
SCALE_BYTES = 4


class KVLayer(Protocol):
    """The slots of one layer, as the operators of a format take them."""

    def read(self, slots: int | Tensor, places: Places) -> Pair:
        """Keys and values of some places of some slots, in floats: [.., KH, D]"""
        ...


class KVFormat(Protocol):
    """How keys and values are stored. name: by which the operator table finds its operators."""

    @property
    def name(self) -> str: ...

    def position_bytes(self, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Memory of one position of a slot in one layer. dtype: of the model."""
        ...

    def allocate(
        self, shape: tuple[int, ...], head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, ...]:
        """The tensors of a store, keys and values first. shape: (layers, 2, S, T, KH), which all of them begin with."""
        ...

    def layer(self, tensors: tuple[Tensor, ...], index: int) -> Any:
        """The view of a layer that this format's operators take: a `KVLayer`."""
        ...


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """keys, values [S, T, KH, D] in the dtype of the model."""

    keys: Tensor
    values: Tensor

    def read(self, slots: int | Tensor, places: Places) -> Pair:
        return self.keys[slots, places], self.values[slots, places]


@dataclass(frozen=True, slots=True)
class DenseKV:
    """Keys and values in the dtype of the model."""

    name: str = "dense"

    def position_bytes(self, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        return 2 * kv_heads * head_dim * dtype.itemsize

    def allocate(
        self, shape: tuple[int, ...], head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, ...]:
        return (torch.zeros(*shape, head_dim, dtype=dtype, device=device),)

    def layer(self, tensors: tuple[Tensor, ...], index: int) -> DenseLayer:
        return DenseLayer(*tensors[0][index].unbind())


@dataclass(frozen=True, slots=True)
class Int8Layer:
    """keys, values [S, T, KH, D] int8; key_scales, value_scales [S, T, KH] float32. A number is int8 * scale."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor

    def read(self, slots: int | Tensor, places: Places) -> Pair:
        return (
            self.keys[slots, places].float() * self.key_scales[slots, places][..., None],
            self.values[slots, places].float() * self.value_scales[slots, places][..., None],
        )


@dataclass(frozen=True, slots=True)
class Int8KV:
    """Keys and values in 8 bits, with one scale per head and position."""

    name: str = "int8"

    def position_bytes(self, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:  # noqa: ARG002 - of any dtype
        return 2 * kv_heads * (head_dim + SCALE_BYTES)

    def allocate(
        self,
        shape: tuple[int, ...],
        head_dim: int,
        dtype: torch.dtype,  # noqa: ARG002 - of any dtype
        device: torch.device,
    ) -> tuple[Tensor, ...]:
        return torch.zeros(*shape, head_dim, dtype=torch.int8, device=device), torch.zeros(*shape, 1, device=device)

    def layer(self, tensors: tuple[Tensor, ...], index: int) -> Int8Layer:
        numbers, scales = tensors
        return Int8Layer(*numbers[index].unbind(), *scales[index, ..., 0].unbind())


DENSE, INT8 = DenseKV(), Int8KV()

CONFIGURED: Mapping[str, KVFormat] = {"model": DENSE, "int8": INT8}
"""Formats by their name in the configuration, `chat.kv`."""
