"""Traces stages and writes them as ONNX graphs that share one file of weights."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common
import torch
from onnxscript.optimizer import fold_constants
from torch import Tensor, nn

from edgeflow.artifacts.manifest import Graph, TensorSpec, WeightFile
from edgeflow.lab.export.graphs.rewrites import select_by_one_list
from edgeflow.lab.export.graphs.stages import StageGraph
from edgeflow_client.errors import CheckpointError
from edgeflow_client.files import sha256_of

OPSET, IR_VERSION = 21, 10
WEIGHTS = "weights.data"
INLINE_BYTES = 1024
"""Constants up to this size stay in the graph."""
ALIGNMENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A stage as ATen operators, in which nothing is written in place."""

    stage: StageGraph
    program: torch.export.ExportedProgram


class _GraphRun(nn.Module):
    def __init__(self, stage: StageGraph) -> None:
        super().__init__()
        self._run = stage.run

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._run(*inputs))


def trace(stage: StageGraph) -> Traced:
    """Trace a stage over its example inputs."""
    with torch.no_grad(), _quiet():
        program = torch.export.export(_GraphRun(stage).eval(), tuple(stage.inputs.values()), strict=False)
        program = program.run_decompositions({})
    select_by_one_list(program.graph)
    program.graph_module.recompile()
    return Traced(stage=stage, program=program)


def to_onnx(traced: Traced) -> ir.Model:
    """The graph of a stage in standard operators."""
    with torch.no_grad(), _quiet():
        written = torch.onnx.export(
            traced.program,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(traced.stage.inputs),
            output_names=list(traced.stage.outputs),
            verbose=False,
            optimize=False,
        )
    if written is None:
        raise RuntimeError("the exporter returned nothing")
    model: ir.Model = _tidied(written.model)
    model.ir_version = IR_VERSION
    model.doc_string = None
    return model


def _tidied(model: ir.Model) -> ir.Model:
    """Fold constants and remove what is unused.

    onnxscript's default rewriting rules are left out: with 0.7.2 they change the results of some graphs.
    """
    fold_constants(model)
    passes = (
        common.InlinePass(),
        common.IdentityEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.NameFixPass(),
        common.ShapeInferencePass(),
    )
    for node in model.graph.all_nodes():
        source = node.inputs[0] if node.op_type == "Cast" else None
        if source is not None and source.dtype == node.attributes["to"].value and not node.outputs[0].is_graph_output():
            node.outputs[0].replace_all_uses_with(source)
    tidied: ir.Model = ir.passes.Sequential(*passes)(model).model
    return tidied


def with_shapes(model: ir.Model) -> ir.Model:
    """The model in topological order, with the shapes of all values added that another tool left out."""
    found: ir.Model = ir.passes.Sequential(common.TopologicalSortPass(), common.ShapeInferencePass())(model).model
    return found


class SharedWeights:
    """The file of weights in a folder: it stores every content once, whichever graphs refer to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = (folder / WEIGHTS).open("wb")
        self._places: dict[str, int] = {}
        self._digest = hashlib.sha256()
        self._size = 0

    def flush(self) -> None:
        """Make everything written so far readable."""
        self._file.flush()

    def move(self, model: ir.Model) -> int:
        """Turn the large constants of a graph into references to this file; return their bytes."""
        moved = 0
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.nbytes <= INLINE_BYTES:
                continue
            value.const_value = ir.ExternalTensor(
                location=WEIGHTS,
                offset=self._place(tensor.tobytes()),
                length=tensor.nbytes,
                dtype=tensor.dtype,
                shape=tensor.shape,  # type: ignore[arg-type]
                name=tensor.name or "",
                base_dir=self.folder,
            )
            moved += tensor.nbytes
        return moved

    def __enter__(self) -> SharedWeights:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def entry(self) -> WeightFile:
        """The entry in the manifest, once all graphs are written."""
        self._file.flush()
        return WeightFile(file=WEIGHTS, digest=self._digest.hexdigest(), size=self._size)

    def _place(self, content: bytes) -> int:
        known_by = hashlib.sha256(content).hexdigest()
        if known_by not in self._places:
            self._write(b"\0" * (-self._size % ALIGNMENT))
            self._places[known_by] = self._size
            self._write(content)
        return self._places[known_by]

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)
        self._size += len(content)


def write_graph(model: ir.Model, stage: StageGraph, folder: Path, weights: SharedWeights, file: str) -> Graph:
    """Write a graph and check it; return its entry in the manifest."""
    moved = weights.move(model)
    weights.flush()
    ir.save(model, folder / file)
    return Graph(
        stage=stage.stage,
        file=file,
        digest=sha256_of(folder / file),
        inputs=tuple(_spec(each) for each in model.graph.inputs),
        outputs=tuple(_spec(each) for each in model.graph.outputs),
        rows=stage.rows,
        past=stage.past,
        batch=stage.batch,
        weight_bytes=moved,
        operators=dict(sorted(Counter(node.op_type for node in model.graph).items())),
    )


def check_graph(path: Path) -> None:
    """Run ONNX's own check of a file; CheckpointError with its message."""
    try:
        onnx.checker.check_model(str(path), full_check=False)
    except onnx.checker.ValidationError as error:
        raise CheckpointError(f"{path.name} is not valid ONNX: {error}") from error


def _spec(value: ir.Value) -> TensorSpec:
    if value.shape is None or value.dtype is None or not value.shape.is_static():
        raise CheckpointError(f"{value.name} has no fixed shape")
    names = {np.dtype(np.float32): "float32", np.dtype(np.int64): "int64", np.dtype(np.bool_): "bool"}
    return TensorSpec(name=str(value.name), dtype=names[value.dtype.numpy()], shape=tuple(value.shape.numpy()))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the messages of the exporter and the tracer."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
