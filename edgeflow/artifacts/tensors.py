"""The inputs and outputs of stages, as descriptions and as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeflow.artifacts.manifest import KVForm, TensorSpec

Array = NDArray[Any]
FLOAT, INT, BOOL = "float32", "int64", "bool"


def spec(name: str, *shape: int, dtype: str = FLOAT) -> TensorSpec:
    """A tensor of a stage."""
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def kv_specs(kv: KVForm, batch: int, rows: int, suffix: str = "") -> Iterator[TensorSpec]:
    """Keys and values of every layer [B, rows, KH, D]. suffix: "_rows" of those that a stage returns."""
    for index in range(kv.layers):
        for kind in ("key", "value"):
            yield spec(f"{kind}{suffix}.{index}", batch, rows, kv.kv_heads, kv.head_dim)


def kv_arrays(kv: Array, suffix: str = "") -> dict[str, Array]:
    """Keys and values of each layer by their names. kv [layers, 2, …]"""
    kinds = ("key", "value")
    return {f"{kind}{suffix}.{index}": kv[index, which] for index in range(len(kv)) for which, kind in enumerate(kinds)}


def zeros(tensor: TensorSpec) -> Array:
    """An array for an input or output."""
    return np.zeros(tensor.shape, tensor.dtype)
