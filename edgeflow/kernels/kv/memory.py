"""A KV format with a compressed memory: what leaves a slot's places stays as one matrix per head (EdgeInfinite, 3.1.2).

A slot holds the pairs of a sequence's first tokens (the sink), of the newest ones, and per KV head a matrix M and a
vector z, in float32 whatever the model computes in. Its memory does not grow with the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.kv.formats import DENSE, MemoryRules, Pair, Places
from edgeflow.kernels.kv.tensors import KVShape, KVTensor

Activation = Callable[[Tensor], Tensor]


def elu_plus_one(x: Tensor) -> Tensor:
    """x + 1 above 0, exp(x) below."""
    return F.elu(x) + 1


ACTIVATIONS: Mapping[str, Activation] = {"elu_plus_one": elu_plus_one, "relu": F.relu}


class Gate(Protocol):
    """The memory gate of one layer: an MLP of hidden width h, and how much of what it gives is mixed in.

    w1 [1 or H, h, D], b1 [1 or H, h], w2 [1 or H, D, h], b2 [1 or H, D], g [1 or H, D]: a leading 1 is shared by the
    heads of the layer.
    """

    @property
    def w1(self) -> Tensor: ...
    @property
    def b1(self) -> Tensor: ...
    @property
    def w2(self) -> Tensor: ...
    @property
    def b2(self) -> Tensor: ...
    @property
    def g(self) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryLayer:
    """keys, values [S, T, KH, D] in the dtype of the model; matrices [S, KH, D, D], norms [S, KH, D] in float32.

    The first D of a matrix is the key's feature, the second the value's channel.
    """

    keys: Tensor
    values: Tensor
    matrices: Tensor
    norms: Tensor
    gate: Gate
    rules: MemoryRules

    def read(self, slots: int | Tensor, places: Places, rows: int | Tensor) -> Pair:  # noqa: ARG002 - alike for all
        return self.keys[slots, places], self.values[slots, places]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryKV:
    """Dense pairs with a memory. gates: of each layer. positions: the longest sequence, in tokens.

    Its places are written and attended by the operators of dense slots.
    """

    memory: MemoryRules
    gates: Sequence[Gate]
    positions: int
    name: str = DENSE.name

    def longest(self, capacity: int) -> int:  # noqa: ARG002 - alike for all
        return self.positions

    def turned(self, capacity: int) -> int:
        return self.positions if self.memory.absolute else capacity

    def tensors(self, shape: KVShape) -> tuple[KVTensor, ...]:
        width, once = shape.head_dim, shape.capacity
        matrices, norms = (
            KVTensor(
                layers=shape.layers, kinds=1, heads=shape.kv_heads, width=size, dtype=torch.float32, positions=once
            )
            for size in (width * width, width)
        )
        return *DENSE.tensors(shape), matrices, norms

    def layer(self, tensors: tuple[Tensor, ...], index: int) -> MemoryLayer:
        data, matrices, norms = tensors
        (keys, values), norms = data[index].unbind(), norms[index, 0, :, 0]
        squares = matrices[index, 0, :, 0].view(*norms.shape, norms.shape[-1])
        return MemoryLayer(
            keys=keys, values=values, matrices=squares, norms=norms, gate=self.gates[index], rules=self.memory
        )

    def reusable(self, known: int) -> int:  # noqa: ARG002 - alike for all
        """0: how many rows can be reused depends on the whole prompt (scheduler/folding.py)."""
        return 0


def memory_bytes(kv_heads: int, head_dim: int) -> int:
    """Bytes of M and z of one slot in one layer: KH * D * (D + 1) numbers of 4 bytes."""
    return kv_heads * head_dim * (head_dim + 1) * torch.float32.itemsize
