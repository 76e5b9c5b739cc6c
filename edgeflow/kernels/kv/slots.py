"""The one KV store: fixed slots in every layer, reserved once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import DENSE, KVFormat, KVShape
from edgeflow.kernels.kv.shift_kv import ShiftKV, ShiftKVChain, strided

Kept = TypeVar("Kept")
PAGE_ROWS = 16  # rows of the longest page that a slot divides into


def rounded_capacity(positions: int) -> int:
    """The next multiple of 16 positions, so that a slot divides into whole pages of 16 rows."""
    return -(-positions // PAGE_ROWS) * PAGE_ROWS


class KVSlots:
    """S slots of T positions in every layer, stored in a format.

    dtype: what the model computes in. tensors: those of the format, [layers, kinds, S, lines, heads, width] each.
    data: the first of them, which has a line for each position: [layers, 2, S, T, KH, D], keys and values, if dense.
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
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        shape = KVShape(layers=layers, capacity=capacity, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
        self._kinds = format.tensors(shape)
        self.tensors = tuple(each.allocate(slots, capacity, device) for each in self._kinds)
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
    def positions(self) -> int:
        """The longest sequence of a slot: T, or more where a format folds what leaves its places into a memory."""
        return self.format.longest(self.capacity)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.tensors)

    def layer(self, index: int) -> Any:
        """A layer as the operators of the format take it."""
        return self._layers[index]

    def copy_rows(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` rows of a slot to another, in every layer.

        A sequence may continue after them at `format.reusable(length)`, or at `length` where the source ends there.
        """
        for kind, tensor in zip(self._kinds, self.tensors, strict=True):
            if kind.moved:
                self._shift(tensor, source, target, kind.lines(length))

    @property
    def can_compact(self) -> bool:
        """True where single places can be moved, as `compact` does; not in 4 bits, where several places share a
        step.
        """
        whole = self.capacity
        return all(kind.positions in (1, whole) for kind in self._kinds if kind.moved)

    def compact(self, slots: Tensor, sources: Tensor, first: Tensor) -> None:
        """Move places of slots [S] up, in every layer, with their scales: sources [S, W] to first + 0 .. W - 1.

        first [S, 1], all int64 on the device. Sources are read before anything is written.
        """
        targets = first + torch.arange(sources.shape[1], device=sources.device)
        for kind, tensor in zip(self._kinds, self.tensors, strict=True):
            if kind.positions == 1:
                tensor[:, :, slots[:, None], targets] = tensor[:, :, slots[:, None], sources]

    def move_rows(self, shift: ShiftKVChain, moves: Tensor) -> None:
        """Make the moves of a pass, one after the other. moves [M, 3] int64 on the device: source, target, length."""
        for kind, tensor in zip(self._kinds, self.tensors, strict=True):
            if kind.moved:
                shift(tensor, kind.line_moves(moves))

    def kept(self, name: str, make: Callable[[KVSlots], Kept]) -> Kept:
        """A value that an operator caches across passes over this store, such as a workspace; made at first use."""
        if name not in self._kept:
            self._kept[name] = make(self)
        kept: Kept = self._kept[name]
        return kept
