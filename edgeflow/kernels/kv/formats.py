"""KV formats: how slots store the keys and values of their positions.

A format is a value. It names the tensors of a store and gives operators a typed view of each layer. The operator
table finds by its name what writes it (`rope_write_kv`) and what attends over it (`packed_attention`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from edgeflow.contract import KVName
from edgeflow.kernels.kv.int4 import GROUP, RING, Int4Layer
from edgeflow_client.errors import ConfigError

Pair = tuple[Tensor, Tensor]
Places = slice | Tensor
Project = Callable[[Tensor], Tensor]
"""[n, KH D] → [n, KH D]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """The sizes of a store besides its number of slots."""

    layers: int
    capacity: int
    """Positions of a slot."""
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    """The dtype of the model."""


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
    """A tensor of a store: [layers, kinds, S, lines, heads, width]."""

    layers: int
    kinds: int
    heads: int
    width: int
    dtype: torch.dtype
    positions: int = 1
    """The number of positions per line: 1, a group, or the capacity where a slot has one line."""
    moved: bool = True
    """False for a tensor used only within one layer of a pass, which moves of positions leave alone."""

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


class KVLayer(Protocol):
    """The slots of one layer, as the operators of a format take them."""

    def read(self, slots: int | Tensor, places: Places, rows: int | Tensor) -> Pair:
        """Keys and values of some places of some slots, in floats: [.., KH, D].

        rows: the position of the row that reads, one for all slots or one for each. A format may show the newest places
        to a row as they were, and to later rows as they are kept.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRules:
    """The content of a slot's memory, and how it is read (memory.MemoryKV)."""

    sink: int
    """Tokens that stay at the front of a slot."""
    segment: int
    """Tokens that are folded at a time."""
    activation: str = "elu_plus_one"
    """The name of an activation in memory.ACTIVATIONS."""
    eps: float = 1e-6
    """The least denominator of a read."""
    with_sink: bool = False
    """True where every fold adds the sink's pairs too."""
    absolute: bool = True
    """True where a row is rotated by its position in the sequence, False where by its place in the slot."""


class KVFormat(Protocol):
    """How keys and values are stored. name: by which the operator table finds its operators.

    memory: of what has left the positions of a slot; None where slots have none.
    """

    @property
    def name(self) -> str: ...

    @property
    def memory(self) -> MemoryRules | None: ...

    def longest(self, capacity: int) -> int:
        """The longest sequence, in tokens, in a slot of so many positions."""
        ...

    def turned(self, capacity: int) -> int:
        """The number of different positions by which RoPE rotates rows in a slot of so many."""
        ...

    def tensors(self, shape: KVShape) -> tuple[KVTensor, ...]:
        """The tensors of a store; the first has a line for each position."""
        ...

    def layer(self, tensors: tuple[Tensor, ...], index: int) -> Any:
        """The view of a layer that this format's operators take: a `KVLayer`."""
        ...

    def reusable(self, known: int) -> int:
        """The number of a slot's first `known` positions that another sequence may continue after.

        The slot may have gone on since, and these positions may have been copied to another slot.
        """
        ...


def slot_bytes(format: KVFormat, shape: KVShape) -> int:
    """Memory of a slot, in all layers."""
    return sum(each.slot_bytes(shape.capacity) for each in format.tensors(shape))


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """The slots of one layer in the dtype of the model."""

    keys: Tensor
    """[S, T, KH, D]"""
    values: Tensor
    """[S, T, KH, D]; in a latent layer the same tensor as `keys`."""

    def read(self, slots: int | Tensor, places: Places, rows: int | Tensor) -> Pair:  # noqa: ARG002 - alike for all
        return self.keys[slots, places], self.values[slots, places]

    def project(self, keys: Project, values: Project, flat: Tensor) -> None:
        """Replace the keys and values of some places by their projections. flat [n] int64: slot * T + position."""
        for of_slots, project in ((self.keys, keys), (self.values, values)):
            places = of_slots.flatten(0, 1)
            found = places[flat]
            places.index_copy_(0, flat, project(found.flatten(1)).view_as(found))


@dataclass(frozen=True, slots=True)
class DenseKV(UnfoldedFormat):
    """Keys and values in the dtype of the model."""

    name: str = "dense"

    def tensors(self, shape: KVShape) -> tuple[KVTensor, ...]:
        return (_numbers(shape, shape.head_dim, shape.dtype),)

    def layer(self, tensors: tuple[Tensor, ...], index: int) -> DenseLayer:
        return DenseLayer(*tensors[0][index].unbind())


@dataclass(frozen=True, slots=True)
class ScaledLayer:
    """The slots of one layer in 8 bits: number = stored * scale.

    keys, values [S, T, KH, D] int8 or e4m3; key_scales, value_scales [S, T, KH] float32.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor

    def read(self, slots: int | Tensor, places: Places, rows: int | Tensor) -> Pair:  # noqa: ARG002 - alike for all
        return (
            self.keys[slots, places].float() * self.key_scales[slots, places][..., None],
            self.values[slots, places].float() * self.value_scales[slots, places][..., None],
        )


@dataclass(frozen=True, slots=True)
class ScaledKV(UnfoldedFormat):
    """Keys and values in 8 bits, with one scale per head and position."""

    name: str
    numbers: torch.dtype
    """The dtype of stored keys and values, int8 or e4m3."""

    def tensors(self, shape: KVShape) -> tuple[KVTensor, ...]:
        return _numbers(shape, shape.head_dim, torch.int8), _numbers(shape, 1, torch.float32)

    def layer(self, tensors: tuple[Tensor, ...], index: int) -> ScaledLayer:
        numbers, scales = tensors
        return ScaledLayer(*numbers[index].view(self.numbers).unbind(), *scales[index, ..., 0].unbind())


@dataclass(frozen=True, slots=True)
class LatentKV(UnfoldedFormat):
    """One row per head and position in the dtype of the model, which is key and value (models/attention/latent.py).

    Its layers are those of dense slots whose keys are their values.
    """

    name: str = "latent"

    def tensors(self, shape: KVShape) -> tuple[KVTensor, ...]:
        return (KVTensor(layers=shape.layers, kinds=1, heads=shape.kv_heads, width=shape.head_dim, dtype=shape.dtype),)

    def layer(self, tensors: tuple[Tensor, ...], index: int) -> DenseLayer:
        rows = tensors[0][index, 0]
        return DenseLayer(rows, rows)


@dataclass(frozen=True, slots=True)
class Int4KV(UnfoldedFormat):
    """Keys and values in 4 bits."""

    name: str = "int4"

    def tensors(self, shape: KVShape) -> tuple[KVTensor, ...]:
        layers, heads, width = shape.layers, shape.kv_heads, shape.head_dim
        codes = KVTensor(layers=layers, kinds=2, heads=heads, width=width // 2, dtype=torch.uint8)
        key_grids = KVTensor(layers=layers, kinds=2, heads=heads, width=width, dtype=torch.int16, positions=GROUP)
        value_grids = KVTensor(layers=layers, kinds=2, heads=heads, width=1, dtype=torch.int16)
        newest = KVTensor(
            layers=layers, kinds=1, heads=RING * heads, width=width, dtype=shape.dtype, positions=shape.capacity
        )
        exact = KVTensor(
            layers=1, kinds=1, heads=GROUP * heads, width=width, dtype=shape.dtype, positions=GROUP, moved=False
        )
        return codes, key_grids, value_grids, newest, exact

    def layer(self, tensors: tuple[Tensor, ...], index: int) -> Int4Layer:
        codes, key_grids, value_grids, newest, exact = tensors
        slots, heads, width = codes.shape[2], codes.shape[4], newest.shape[5]
        keys, values = codes[index].unbind()
        return Int4Layer(
            keys=keys,
            values=values,
            key_grids=key_grids[index],
            value_grids=value_grids[index, ..., 0],
            newest=newest[index].view(slots, RING, heads, width),
            exact=exact.view(slots, -1, heads, width),
        )

    def reusable(self, known: int) -> int:
        return known - known % GROUP


def _numbers(shape: KVShape, width: int, dtype: torch.dtype) -> KVTensor:
    """The size of `width` numbers for every head of a key and a value."""
    return KVTensor(layers=shape.layers, kinds=2, heads=shape.kv_heads, width=width, dtype=dtype)


DENSE, LATENT, INT4 = DenseKV(), LatentKV(), Int4KV()
INT8, FP8 = ScaledKV("int8", torch.int8), ScaledKV("fp8", torch.float8_e4m3fn)

CONFIGURED: Mapping[KVName, KVFormat] = {"model": DENSE, "int8": INT8, "fp8": FP8, "int4": INT4}
"""Formats by their name in the configuration: `chat.kv`, `policy.kv`."""


def configured_format(key: str, name: KVName, own: KVFormat) -> KVFormat:
    """The format of a name in the configuration, by `key`, for a model; ConfigError where it cannot store its KV.

    own: the model's, which `model` stands for.
    """
    if name == "model":
        return own
    if own is not DENSE:
        raise ConfigError(
            f"{key}: {name} is for keys and values of heads, the slots of this model hold one {own.name} row per "
            "position for both: set it to model"
        )
    return CONFIGURED[name]


def check_action_tokens(key: str, kv_format: KVFormat, count: int) -> None:
    """ConfigError for a policy with more action tokens than int4 rounds at a time: drafts reach back no further.

    key: by which the format was given.
    """
    if kv_format is INT4 and count > GROUP:
        raise ConfigError(f"{key}: int4 serves at most {GROUP} action tokens, this checkpoint has {count}")
