"""artifact.json: the description of exported static graphs and of their tensors (docs/develop/static-graphs.md).

A folder of an artifact has this file, a graph (ONNX) for every stage and bucket, the weights that they share, and the
JSON files of the checkpoint. Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeflow.text.checkpoint_json import Fields, read_json
from edgeflow_client.errors import CheckpointError

MANIFEST = "artifact.json"
FORMAT, VERSION = "edgeflow-artifact", 1
DTYPES = ("float32", "int64", "bool")
Array = NDArray[Any]
FLOAT, INT, BOOL = "float32", "int64", "bool"


class StageName(str, Enum):
    """TOWERS: cameras and text to rows of a prompt. PREFILL: these rows to keys and values. STEP: a decode step, or a
    denoising step."""

    TOWERS = "towers"
    PREFILL = "prefill"
    STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """An input or output of a graph."""

    name: str
    dtype: str
    """float32, int64 or bool."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A graph of fixed shapes."""

    stage: StageName
    file: str
    digest: str
    """SHA-256 of the file."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    rows: int
    """Rows of a prompt, or of one candidate in a step."""
    past: int = 0
    """Positions of the slots that the graph reads."""
    batch: int = 1
    """Sequences that a step takes at once."""
    weight_bytes: int = 0
    """Size of the weight files that the graph names."""
    precision: str = "float32"
    """float32, int16, w8a16 or w8a8."""
    operators: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    """A file of weights that graphs name."""

    file: str
    digest: str
    """SHA-256 of the file."""
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVForm:
    """Keys and values between stages: inputs key.0, value.0, key.1, … [B, past, KH, D] of a step, and rows
    key_rows.0, value_rows.0, … [B, rows, KH, D] that a prefill or a step of tokens returns.
    """

    layers: int
    kv_heads: int
    head_dim: int
    positions: int
    """Positions of a slot."""
    kinds: tuple[str, ...] = ()
    """The kind of each layer; in a layer of kind "cross", steps see only the prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A substitution of operators that was made."""

    name: str
    sites: int
    """The number of places where it was made."""
    constant: float | None = None
    """The constant of a mask, where the substitution has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of artifact.json."""

    family: str
    """The family of a policy, or the model_type of a chat model."""
    fingerprint: str
    """The fingerprint of the checkpoint."""
    text: int
    """Tokens of a prompt's bucket."""
    kv: KVForm
    graphs: tuple[Graph, ...]
    weights: tuple[WeightFile, ...]
    rewrites: tuple[Rewritten, ...] = ()
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    """How observations become inputs of the towers and outputs become actions, for other engines."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """The versions of the libraries that exported it."""

    def of(self, stage: StageName) -> tuple[Graph, ...]:
        """The graphs of a stage, those of fewer rows and sequences first."""
        found = (each for each in self.graphs if each.stage is stage)
        return tuple(sorted(found, key=lambda graph: (graph.rows, graph.batch)))


def is_artifact(folder: Path) -> bool:
    """True for a folder with artifact.json."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> Manifest:
    """Read artifact.json; CheckpointError names the key at fault, and another format or version."""
    values = Fields(MANIFEST, read_json(folder / MANIFEST))
    values.choice("format", (FORMAT,))
    version = values.number("version", 0)
    if version != VERSION:
        raise CheckpointError(f"{MANIFEST}.version is {version:g}; served: {VERSION}: export the model again")
    kv = values.object("kv")
    return Manifest(
        family=values.text("family"),
        fingerprint=values.text("fingerprint"),
        text=values.size("text"),
        kv=KVForm(
            layers=kv.size("layers"),
            kv_heads=kv.size("kv_heads"),
            head_dim=kv.size("head_dim"),
            positions=kv.size("positions"),
            kinds=kv.texts("kinds"),
        ),
        graphs=tuple(_graph(each) for each in values.objects("graphs")),
        weights=tuple(
            WeightFile(file=_file(each), digest=each.text("digest"), size=each.count("size"))
            for each in values.objects("weights")
        ),
        rewrites=tuple(
            Rewritten(
                name=each.text("name"),
                sites=each.count("sites"),
                constant=each.number("constant", 0.0) if "constant" in each else None,
            )
            for each in values.objects("rewrites")
        ),
        preprocessing=values.plain("preprocessing"),
        versions=values.plain("versions"),
    )


def _graph(values: Fields) -> Graph:
    return Graph(
        stage=StageName(values.choice("stage", tuple(stage.value for stage in StageName))),
        file=_file(values),
        digest=values.text("digest"),
        inputs=tuple(_tensor(each) for each in values.objects("inputs")),
        outputs=tuple(_tensor(each) for each in values.objects("outputs")),
        rows=values.size("rows"),
        past=values.count("past"),
        batch=values.size("batch"),
        weight_bytes=values.count("weight_bytes"),
        precision=values.text("precision"),
        operators=values.plain("operators"),
    )


def _tensor(values: Fields) -> TensorSpec:
    shape = values.whole_numbers("shape")
    return TensorSpec(name=values.text("name"), dtype=values.choice("dtype", DTYPES), shape=shape)


def _file(values: Fields) -> str:
    """The name of a file in the folder, not a path out of it."""
    name = values.text("file")
    if Path(name).name != name or name in (".", "..") or not name.isprintable():
        raise CheckpointError(f"{values.name('file')} is {name[:60]!r}; served: a file in the folder of {MANIFEST}")
    return name


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
