"""Stages of a model as functions of fixed shapes, to be traced and written as graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from edgeflow.artifacts.manifest import KVForm, StageName
from edgeflow.kernels.kv.formats import Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGraph:
    """A stage."""

    stage: StageName
    run: Callable[..., Sequence[Tensor]]
    inputs: Mapping[str, Tensor]
    """An example of each input, by name, in the order in which `run` takes them."""
    outputs: tuple[str, ...]
    """Names of the outputs."""
    rows: int
    past: int = 0
    batch: int = 1
    """All three: as in Graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProgram:
    """All stages of a model."""

    stages: tuple[StageGraph, ...]
    kv: KVForm
    text: int
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    """Both: as in Manifest."""
    source: object = None
    """The FlowExport or TokenExport that they come from."""


def kv_names(layers: int, suffix: str = "") -> tuple[str, ...]:
    """key.0, value.0, key.1, …"""
    return tuple(f"{kind}{suffix}.{index}" for index in range(layers) for kind in ("key", "value"))


def pairs(tensors: Sequence[Tensor]) -> Iterator[Pair]:
    """Keys and values of each layer, from a flat list."""
    return zip(tensors[::2], tensors[1::2], strict=True)
