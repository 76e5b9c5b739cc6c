"""Keys and values of a static graph: those that enter it are inputs, those of its rows are results.

Stands where a pass has KV slots, so that the same networks are traced. Nothing is written in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import DENSE, Pair, Project
from edgeflow.kernels.kv.slots import KVSlots


class StaticLayer:
    """One layer. past: keys and values [B, T, KH, D] that enter; None where nothing does. rows: those of the graph's
    rows [B R, KH, D], once they are made; None in a layer in which rows see the past alone.
    """

    def __init__(self, past: Pair | None) -> None:
        self.past = past
        self.rows: Pair | None = None

    def enter(self, keys: Tensor, values: Tensor) -> None:
        """Keys and values of all rows [B R, KH, D]."""
        self.rows = keys, values

    def project(self, keys: Project, values: Project, flat: Tensor) -> None:  # noqa: ARG002 - all rows are meant
        """As of DenseLayer."""
        if self.rows is None:
            raise ValueError("no rows have entered this layer")
        k, v = self.rows
        self.rows = keys(k.flatten(1)).view_as(k), values(v.flatten(1)).view_as(v)

    def all(self, batch: int) -> Pair:
        """Keys and values that rows may see [B, T + R, KH, D]: the past, then the rows."""
        parts = [] if self.past is None else [self.past]
        if self.rows is not None:
            k, v = self.rows
            parts.append((k.reshape(batch, -1, *k.shape[1:]), v.reshape(batch, -1, *v.shape[1:])))
        if len(parts) == 1:
            return parts[0]
        (k, v), (more_k, more_v) = parts
        return torch.cat([k, more_k], dim=1), torch.cat([v, more_v], dim=1)


class StaticKV:
    """All layers of a graph. past: of each layer, as of StaticLayer. capacity: the positions that RoPE knows."""

    format = DENSE

    def __init__(self, past: Sequence[Pair | None], capacity: int) -> None:
        self.capacity = capacity
        self.layers = [StaticLayer(each) for each in past]

    def layer(self, index: int) -> StaticLayer:
        return self.layers[index]

    @property
    def slots(self) -> KVSlots:
        """This store, as networks take one: they read its format, capacity and layers."""
        return cast("KVSlots", self)
