"""The files of an artifact, and the graphs of a model of tokens, checked before anything is loaded. Torch-free."""

from __future__ import annotations

import math
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeflow.artifacts.manifest import (
    BOOL,
    INT,
    MANIFEST,
    Graph,
    KVForm,
    Manifest,
    StageName,
    TensorSpec,
    kv_specs,
    read_manifest,
    spec,
)
from edgeflow_client.errors import CheckpointError
from edgeflow_client.files import sha256_of

MOST_GRAPHS = 64
MOST_TENSORS = 4096
"""Inputs and outputs of a graph."""
MOST_GRAPH_BYTES = 512 << 20
"""The largest file of a graph; its weights are in another file."""
MOST_NUMBERS = 1 << 30
"""The largest tensor."""
MOST_BATCH = 1024
ITEM_BYTES = {"float32": 4, "int64": 8, "bool": 1}
AGAIN = "export the model again"


def open_artifact(folder: Path, family: str = "") -> Manifest:
    """The manifest of a folder whose files are there in the sizes that it states; CheckpointError names the first that
    is not. Their contents are compared by `check_contents`. family: of config.json; "" = any.
    """
    manifest = read_manifest(folder)
    if manifest.family != (family or manifest.family):
        raise CheckpointError(f"{MANIFEST}.family is {manifest.family}, and config.json is of {family}: copy it again")
    _check_limits(manifest)
    for graph in manifest.graphs:
        size = _size(folder, graph.file)
        if size > MOST_GRAPH_BYTES:
            raise CheckpointError(f"model: {folder / graph.file} has {size} bytes; served: up to {MOST_GRAPH_BYTES}")
    for weights in manifest.weights:
        size = _size(folder, weights.file)
        if size != weights.size:
            raise CheckpointError(
                f"model: {folder / weights.file} has {size} bytes, and {MANIFEST} states {weights.size}: copy it again"
            )
    return manifest


def check_contents(folder: Path, manifest: Manifest) -> None:
    """CheckpointError for a file whose SHA-256 is not that of the manifest."""
    for file, digest in _digests(manifest):
        try:
            found = sha256_of(folder / file)
        except OSError as error:
            raise CheckpointError(f"model: cannot read {folder / file}: {error.strerror}") from None
        if found != digest:
            swapped = [other for other, known in _digests(manifest) if known == found]
            is_it = f": it is {swapped[0]}" if swapped else ""
            raise CheckpointError(
                f"model: {folder / file} is not the file that {MANIFEST} names{is_it}; SHA-256 {found[:12]}…, expected "
                f"{digest[:12]}…: copy it again"
            )


def loaded_bytes(folder: Path, manifest: Manifest) -> int:
    """Memory of all graphs once they are loaded: an upper bound.

    Each has its weights to itself, which the library orders anew, and arrays for its inputs and outputs, as for copies
    of the slots that a step reads.
    """
    own = sum(_size(folder, graph.file) + graph.weight_bytes for graph in manifest.graphs)
    tensors = (each for graph in manifest.graphs for each in (*graph.inputs, *graph.outputs))
    return own + sum(ITEM_BYTES[each.dtype] * math.prod(each.shape) for each in tensors)


def _check_limits(manifest: Manifest) -> None:
    if not 1 <= len(manifest.graphs) <= MOST_GRAPHS:
        raise CheckpointError(f"{MANIFEST}.graphs has {len(manifest.graphs)} entries; served: 1 to {MOST_GRAPHS}")
    for stage in StageName:
        if not manifest.of(stage):
            raise CheckpointError(f"{MANIFEST}.graphs has none of stage {stage.value}: {AGAIN}")
    for index, graph in enumerate(manifest.graphs):
        where = f"{MANIFEST}.graphs[{index}]"
        if graph.batch > MOST_BATCH:
            raise CheckpointError(f"{where}.batch is {graph.batch}; served: 1 to {MOST_BATCH}")
        stored = sum(each.size for each in manifest.weights)
        if graph.weight_bytes > stored:
            raise CheckpointError(f"{where} states more bytes of weights than the {stored} that are there: {AGAIN}")
        tensors = [*graph.inputs, *graph.outputs]
        if len(tensors) > MOST_TENSORS:
            raise CheckpointError(f"{where} has {len(tensors)} inputs and outputs; served: up to {MOST_TENSORS}")
        for tensor in tensors:
            _check_tensor(where, tensor)


def _check_tensor(where: str, tensor: TensorSpec) -> None:
    numbers = 1
    for size in tensor.shape:
        numbers = min(numbers * size, MOST_NUMBERS + 1)  # no number of thousands of digits is made or printed
    if not 1 <= numbers <= MOST_NUMBERS:
        raise CheckpointError(
            f"{where}: {tensor.name[:60]} has shape {str(list(tensor.shape[:8]))[:80]}; served: 1 to {MOST_NUMBERS} "
            "numbers"
        )


def expect_tensors(graph: Graph, inputs: list[TensorSpec], outputs: list[TensorSpec]) -> None:
    """CheckpointError for a graph whose inputs or outputs are not these, in any order."""
    for kind, found, wanted in (("input", graph.inputs, inputs), ("output", graph.outputs, outputs)):
        compare_tensors(f"{MANIFEST}: {graph.file}", kind, found, wanted)


def expect_kv(kv: KVForm, layers: int, kv_heads: int, head_dim: int) -> None:
    """CheckpointError for keys and values of other sizes than config.json gives."""
    found, wanted = [kv.layers, kv.kv_heads, kv.head_dim], [layers, kv_heads, head_dim]
    if found != wanted:
        raise CheckpointError(
            f"{MANIFEST}.kv has layers, KV heads and head width {found}, and config.json {wanted}: {AGAIN}"
        )


def compare_tensors(
    where: str, kind: str, found: tuple[TensorSpec, ...] | list[TensorSpec], wanted: list[TensorSpec]
) -> None:
    """CheckpointError that names the first tensor which differs. kind: input or output."""
    there = {each.name: each for each in found}
    for each in wanted:
        own = there.pop(each.name, None)
        if own != each:
            has = f"{_tensor_text(own)}" if own else f"none of the name {each.name}"
            raise CheckpointError(f"{where} has {kind} {has}; expected {_tensor_text(each)}: {AGAIN}")
    if there:
        name = next(iter(there))
        raise CheckpointError(f"{where} has {kind} {name[:60]}, which this stage does not have: {AGAIN}")


def _tensor_text(tensor: TensorSpec) -> str:
    return f"{tensor.name} {tensor.dtype} {list(tensor.shape)}"


def _size(folder: Path, file: str) -> int:
    """Bytes of a file; CheckpointError where it is not there, or is a folder or a device."""
    try:
        found = (folder / file).stat()
    except OSError:
        raise CheckpointError(f"model: {folder} lacks {file}, which {MANIFEST} names: copy the folder again") from None
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"model: {folder / file} is not a file: copy the folder again")
    return found.st_size


def _digests(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield from ((each.file, each.digest) for each in manifest.graphs)
    yield from ((each.file, each.digest) for each in manifest.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenForm:
    """The sizes of a checkpoint's graphs."""

    layers: int
    kv_heads: int
    head_dim: int
    width: int
    """E, the width of the model."""
    vocabulary: int
    """V, the size of the vocabulary."""
    images: tuple[TensorSpec, ...]
    """Inputs of the towers besides tokens."""
    chunks: bool
    """True where a prefill may follow rows that a slot already holds."""

    def fixed_rows(self, manifest: Manifest) -> int:
        """Rows of a prompt besides those of its text; CheckpointError for graphs of other shapes than these sizes give,
        or than the manifest's."""
        kv, towers, prefills = manifest.kv, manifest.of(StageName.TOWERS), manifest.of(StageName.PREFILL)
        expect_kv(kv, self.layers, self.kv_heads, self.head_dim)
        rows = [graph.rows for graph in towers]
        fixed = rows[-1] - manifest.text
        if rows != [graph.rows for graph in prefills] or len(set(rows)) < len(rows) or not 0 <= fixed < rows[0]:
            raise CheckpointError(
                f"{MANIFEST} has towers of {rows} rows, prefills of {[graph.rows for graph in prefills]} and texts of "
                f"{manifest.text} tokens, which do not fit: {AGAIN}"
            )
        if rows[-1] > kv.positions:
            raise CheckpointError(f"{MANIFEST} has prefills of {rows[-1]} rows and {kv.positions} positions: {AGAIN}")
        for tower, prefill in zip(towers, prefills, strict=True):
            hidden = spec("hidden", 1, tower.rows, self.width)
            ids = spec("ids", 1, tower.rows - fixed, dtype=INT)
            expect_tensors(tower, [*self.images, ids], [hidden])
            past = kv.positions if self.chunks else 0
            if prefill.past != past:
                raise CheckpointError(
                    f"{MANIFEST}: {prefill.file} has a past of {prefill.past} positions; expected {past}: {AGAIN}"
                )
            inputs = [hidden, *place_specs(1, tower.rows, past + tower.rows), spec("sampled", 1, dtype=INT)]
            inputs += kv_specs(kv, 1, past) if past else ()
            expect_tensors(prefill, inputs, [spec("logits", 1, self.vocabulary), *kv_specs(kv, 1, tower.rows, "_rows")])
        for step in manifest.of(StageName.STEP):
            inputs = [spec("ids", step.batch, 1, dtype=INT), *place_specs(step.batch, 1, kv.positions + 1)]
            inputs += kv_specs(kv, step.batch, kv.positions)
            logits = spec("logits", step.batch, self.vocabulary)
            expect_tensors(step, inputs, [logits, *kv_specs(kv, step.batch, 1, "_rows")])
        return fixed


def place_specs(batch: int, rows: int, seen: int) -> Sequence[TensorSpec]:
    """The positions of rows, and the rows that each sees."""
    return [spec("position", batch, rows, dtype=INT), spec("seen", batch, rows, seen, dtype=BOOL)]
