"""Statistics of a dataset, stored beside a checkpoint, and what they do to values.

Published source: LeRobot's normalize_processor.py. Torch-free: control checks a checkpoint before a worker loads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from edgeflow_client.errors import CheckpointError
from edgeflow_client.files import open_regular

Floats = NDArray[np.float32]
RANGES = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}
"""Statistics that become -1 and 1, by kind of normalisation."""
IDENTITY, MEAN_STD = "IDENTITY", "MEAN_STD"
KINDS = (IDENTITY, MEAN_STD, *RANGES)
DTYPES = ("F32", "F64", "F16")
SHOWN = 120  # characters of names in messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """Normalisation: (x - centre) / divisor - origin, and back: (y + origin) * factor + centre.

    The arrays have the shape of a vector, or [3, 1, 1] for images. divisor and factor differ by the published epsilon.
    """

    centre: Floats
    divisor: Floats
    factor: Floats
    origin: float

    @classmethod
    def of(cls, kind: str, statistics: Sequence[Floats], eps: float) -> Affine:
        """statistics: mean and standard deviation, or the values that become -1 and 1. eps: keeps divisors from 0."""
        first, second = statistics
        if kind == MEAN_STD:
            return cls(centre=first, divisor=(second + eps).astype(np.float32), factor=second, origin=0.0)
        span = second - first
        half = (np.where(span == 0, eps, span) / 2).astype(np.float32)
        return cls(centre=first, divisor=half, factor=half, origin=1.0)

    def normalised(self, values: Floats) -> Floats:
        """Values [..., n] in the units of the statistics → normalised"""
        normalised: Floats = (values - self.centre) / self.divisor - np.float32(self.origin)
        return normalised

    def restored(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Normalised values [..., D] → in the units of the statistics."""
        restored: NDArray[np.float64] = (values + self.origin) * self.factor.astype(np.float64) + self.centre
        return restored

    def unrestored(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The inverse of `restored`: values [..., D] in the units of the statistics → normalised, NaN or infinite where
        the factor is 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            normalised: NDArray[np.float64] = (values - self.centre) / self.factor.astype(np.float64) - self.origin
        return normalised


def names_of(kind: str) -> tuple[str, str]:
    """The two statistics that a kind of normalisation needs."""
    return ("mean", "std") if kind == MEAN_STD else RANGES[kind]


def read_statistics(path: Path, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
    """Statistics by name, each of the wanted shape; CheckpointError names the first that has another one.

    Shapes are compared with the file's header before anything is read. [3, 1, 1] may be stored as [3].
    """
    if not path.is_file():
        raise CheckpointError(f"{path.parent} has no {path.name} with its statistics: copy the checkpoint again")
    try:
        open_regular(path).close()
        with safe_open(path, framework="numpy") as file:
            stored = set(file.keys())
            return {name: _read(file, name, shape, path, stored) for name, shape in wanted.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or not safetensors: copy the checkpoint again") from error


def _data_sets(name: str, stored: set[str]) -> list[str]:
    """The data sets whose statistics of this name a file has, as `so100.action.mean` or `so100_buffer_action.mean`."""
    wanted = name.replace(".", "_")
    spelled = {each: each.replace("_buffer_", ".").replace(".", "_") for each in stored}
    found = {each[: len(text) - len(wanted) - 1] for each, text in spelled.items() if text.endswith(f"_{wanted}")}
    return sorted(found - {""})


def _read(file: Any, name: str, wanted: tuple[int, ...], path: Path, stored: set[str]) -> Floats:
    if name not in stored:
        others = _data_sets(name, stored)
        if others:
            raise CheckpointError(
                f"{path.name} has {name} for each of the data sets {', '.join(others)[:SHOWN]}, and none of one robot: "
                "fine-tune the policy on data of yours, or save it with the statistics of one data set"
            )
        raise CheckpointError(
            f"{path.name} lacks {name}, by which its feature is normalised: copy the checkpoint again"
        )
    part = file.get_slice(name)
    shape, dtype = tuple(part.get_shape()), part.get_dtype()
    if shape != wanted and not (len(wanted) == 3 and shape == wanted[:1]):
        raise CheckpointError(f"{path.name}: {name} has shape {list(shape)}, expected {list(wanted)}")
    if dtype not in DTYPES:
        raise CheckpointError(f"{path.name}: {name} has dtype {dtype}; served: {', '.join(DTYPES)}")
    values: Floats = np.asarray(file.get_tensor(name), np.float32).reshape(wanted)
    if not np.isfinite(values).all():
        raise CheckpointError(f"{path.name}: {name} has values that are not finite")
    return values
