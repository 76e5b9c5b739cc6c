"""INPLACESHIFTKV (ActionFlow section 3.3): the first `length` rows of a slot enter another, in every layer.

data: a tensor of a store [layers, kinds, S, T, KH, D], changed in place; rows of the target at and beyond `length` stay
as they are. Where a row stands for several positions, lengths count rows (`KVTensor.line_moves`).
A chain is several moves, one after the other: moves [M, 3] int64 on the device of data: source, target, length.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ShiftKV = Callable[[Tensor, int, int, int], None]
ShiftKVChain = Callable[[Tensor, Tensor], None]


def reference(data: Tensor, source: int, target: int, length: int) -> None:
    """Position by position."""
    for layer in data:
        for kind in layer:
            for position in range(length):
                kind[target, position] = kind[source, position].clone()


def strided(data: Tensor, source: int, target: int, length: int) -> None:
    """One strided copy over all layers."""
    data[:, :, target, :length] = data[:, :, source, :length]


def chain_reference(data: Tensor, moves: Tensor) -> None:
    """Move by move, position by position."""
    for move in moves.tolist():
        reference(data, *move)


def chain_strided(data: Tensor, moves: Tensor) -> None:
    """Move by move."""
    for move in moves.tolist():
        strided(data, *move)


def chain_indexed(data: Tensor, moves: Tensor) -> None:
    """Move by move over whole slots, by indices that stay on the device."""
    place = torch.arange(data.shape[3], device=data.device)[:, None, None]
    for source, target, length in moves[..., None].unbind():
        rows = torch.where(place < length, data.index_select(2, source), data.index_select(2, target))
        data.index_copy_(2, target, rows)
