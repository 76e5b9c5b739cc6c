"""FUSEDROPEANDWRITEKV (ActionFlow section 3.3): rotate queries and keys, put keys and values into their slots.

Half-split (NeoX) rotary embedding: the pair (i, i + D/2) is rotated by position * frequency[i].
qkv [L_Q, (H + 2 KH) D]; rows: RowPlaces of the pass; layer: of the KV format, written at the rows' places, nowhere
else. Returns q [L_Q, H, D]. The implementations here write dense slots and latent ones.

Over latent slots there are no values: qk [L_Q, (H + KH) D]. Of each head the last r numbers are rotated, as many as the
rotations have; the others are kept. `qk` is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import DenseLayer
from edgeflow.kernels.kv.layout import PackedLayout

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlaces:
    """The rotations and places of a pass's rows, for all layers.

    cos [L_Q, 1, D] (both halves alike), sin [L_Q, 1, D/2], or r in place of D where only a part of a head is rotated;
    flat [L_Q] int64: slot * T + position.
    """

    cos: Tensor
    sin: Tensor
    flat: Tensor
    lengths: tuple[int, ...]
    """Rows of each span, on the host."""
    live: Tensor | None = None
    """False for rows that only pad their span, as in PackedLayout."""
    _kept: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def minus_sin(self) -> Tensor:
        """The negative of `sin`, for what rotates by products that are added."""
        return self.kept("minus_sin", self.sin.neg)

    def kept(self, name: str, make: Callable[[], Made]) -> Made:
        """A value that an operator derives from these tensors once for all layers; computed again at a replay."""
        if name not in self._kept:
            self._kept[name] = make()
        kept: Made = self._kept[name]
        return kept


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """The rotation of every position: cos [T, 1, D], sin [T, 1, D/2]."""

    cos: Tensor
    sin: Tensor
    sections: tuple[int, ...] = ()
    """The number of the D/2 frequencies that follow each component of a position (M-RoPE: time, height, width); empty
    where all follow the first.
    """

    @classmethod
    def of(cls, positions: int, head_dim: int, theta: float, like: Tensor) -> RotaryTable:
        """Frequencies theta^(-2i/D), as first published."""
        return cls.turning(positions, plain_frequencies(head_dim, theta), like)

    @classmethod
    def turning(
        cls, positions: int, frequencies: Tensor, like: Tensor, sections: tuple[int, ...] = (), factor: float = 1.0
    ) -> RotaryTable:
        """frequencies [D/2], float32; factor: of all cosines and sines. Computed in float32, stored in the dtype and on
        the device of `like`."""
        places = torch.arange(positions, dtype=torch.float32, device=like.device)
        angles = places[:, None, None] * frequencies.to(like.device)
        cos, sin = ((factor * each).to(like.dtype) for each in (angles.cos(), angles.sin()))
        return cls(cos.repeat(1, 1, 2), sin, sections)

    def places(self, layout: PackedLayout, capacity: int) -> RowPlaces:
        """The rotations and places of a pass's rows, over slots of `capacity` positions."""
        sin = self._of_rows(self.sin, layout.rope_position)
        cos = self._of_rows(self.cos, layout.rope_position)
        flat = torch.add(layout.row_position, layout.row_slot, alpha=capacity)
        return RowPlaces(cos=cos, sin=sin, flat=flat, lengths=layout.lengths, live=layout.live)

    def _of_rows(self, table: Tensor, position: Tensor) -> Tensor:
        """table [T, 1, n], position [C, L_Q] → [L_Q, 1, n]; each section from its component's row of the table."""
        if not self.sections or len(position) == 1:
            return table[position[0]]
        widths = list(self.sections) * (table.shape[-1] // sum(self.sections))
        parts = torch.split(table[position], widths, dim=-1)
        return torch.cat([part[index % len(position)] for index, part in enumerate(parts)], dim=-1)


def plain_frequencies(head_dim: int, theta: float) -> Tensor:
    """theta^(-2i/D): [D/2] float32"""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


RopeWriteKV = Callable[[Tensor, int, int, RowPlaces, Any], Tensor]
"""The last argument is the layer of a format."""


def reference(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: DenseLayer) -> Tensor:
    """Row by row, all heads of a row at once."""
    split = qkv.view(qkv.shape[0], heads + 2 * kv_heads, -1)
    rotated = torch.empty_like(split[:, : heads + kv_heads])
    half = rotated.shape[-1] // 2
    for row, place in enumerate(rows.flat.tolist()):
        cos, sin = rows.cos[row, 0, :half], rows.sin[row, 0]
        a, b = split[row, : heads + kv_heads, :half], split[row, : heads + kv_heads, half:]
        rotated[row, :, :half] = a * cos - b * sin
        rotated[row, :, half:] = b * cos + a * sin
        slot, position = divmod(place, layer.keys.shape[1])
        layer.keys[slot, position] = rotated[row, heads:]
        layer.values[slot, position] = split[row, heads + kv_heads :]
    return rotated[:, :heads]


def indexed(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: DenseLayer) -> Tensor:
    """Queries and keys are rotated together; one indexed write each for keys and values."""
    split = qkv.view(qkv.shape[0], heads + 2 * kv_heads, -1)
    turned = rotated(split[:, : heads + kv_heads], rows)
    layer.keys.flatten(0, 1).index_copy_(0, rows.flat, turned[:, heads:])
    layer.values.flatten(0, 1).index_copy_(0, rows.flat, split[:, heads + kv_heads :])
    return turned[:, :heads]


def rotated(x: Tensor, rows: RowPlaces) -> Tensor:
    """x [L, n, D], every head rotated by its row's position; a new tensor."""
    half = x.shape[-1] // 2
    turned = x * rows.cos
    turned[..., :half].addcmul_(x[..., half:], rows.minus_sin)
    turned[..., half:].addcmul_(x[..., :half], rows.sin)
    return turned


def latent_reference(qk: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: DenseLayer) -> Tensor:
    """Row by row, all heads of a row at once."""
    split = qk.view(qk.shape[0], heads + kv_heads, -1).clone()
    half = rows.sin.shape[-1]
    for row, place in enumerate(rows.flat.tolist()):
        cos, sin = rows.cos[row, 0, :half], rows.sin[row, 0]
        a, b = split[row, :, -2 * half : -half].clone(), split[row, :, -half:].clone()
        split[row, :, -2 * half : -half] = a * cos - b * sin
        split[row, :, -half:] = b * cos + a * sin
        layer.keys[divmod(place, layer.keys.shape[1])] = split[row, heads:]
    return split[:, :heads]


def latent_indexed(qk: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: DenseLayer) -> Tensor:
    """Queries and keys are rotated together, where they lie; one indexed write."""
    split = qk.view(qk.shape[0], heads + kv_heads, -1)
    half = rows.sin.shape[-1]
    straight = split[..., -2 * half :]
    turned = straight * rows.cos
    turned[..., :half].addcmul_(straight[..., half:], rows.minus_sin)
    turned[..., half:].addcmul_(straight[..., :half], rows.sin)
    straight.copy_(turned)
    layer.keys.flatten(0, 1).index_copy_(0, rows.flat, split[:, heads:])
    return split[:, :heads]
