"""INPLACESHIFTKV (ActionFlow section 3.3): the first `length` rows of a slot enter another, in every layer.

data [layers, 2, S, T, KH, D], changed in place; rows of the target at and beyond `length` stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

ShiftKV = Callable[[Tensor, int, int, int], None]


def reference(data: Tensor, source: int, target: int, length: int) -> None:
    """Position by position."""
    for layer in data:
        for kind in layer:
            for position in range(length):
                kind[target, position] = kind[source, position].clone()


def strided(data: Tensor, source: int, target: int, length: int) -> None:
    """One strided copy over all layers."""
    data[:, :, target, :length] = data[:, :, source, :length]
