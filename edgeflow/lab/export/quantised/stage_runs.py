"""Runs of single stages over arrays, by torch or by a graph, and the keys of stages."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from edgeflow.artifacts.manifest import StageName
from edgeflow.artifacts.sessions import CPU_PROVIDER, Runtime, session_options
from edgeflow.lab.export.graphs.stages import StageGraph

Array = NDArray[Any]
Arrays = dict[str, Array]
Run = Callable[[StageGraph, Arrays], Sequence[Array]]
"""Computes the outputs of a stage from its inputs, which are given by name and in order."""
FILE, WEIGHTS = "graph.onnx", "graph.data"


class StageKey(NamedTuple):
    """Identifies a stage of a model; its number of rows identifies the bucket."""

    stage: StageName
    rows: int
    batch: int


def stage_key(stage: StageGraph) -> StageKey:
    """The key of a stage."""
    return StageKey(stage.stage, stage.rows, stage.batch)


@torch.inference_mode()
def run_torch(stage: StageGraph, inputs: Mapping[str, Array]) -> list[Array]:
    """Compute a stage by the functions that were traced."""
    given = [torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in stage.inputs]
    return [each.numpy() for each in stage.run(*given)]


def padded(values: Array, length: int) -> Array:
    """values [n, ...] followed by zeros: [length, ...]."""
    found = np.zeros((length, *values.shape[1:]), values.dtype)
    found[: len(values)] = values
    return found


def session_of(model: ir.Model) -> Any:
    """A session over a graph, through a temporary file: a graph in memory is limited to 2 GB."""
    import onnxruntime

    options = session_options(Runtime(threads=torch.get_num_threads()))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE
        ir.save(model, path, external_data=WEIGHTS)
        return onnxruntime.InferenceSession(path, options, providers=[CPU_PROVIDER])


class GraphRun:
    """Computes stages by their graphs; a Run."""

    def __init__(self, models: Mapping[StageKey, ir.Model]) -> None:
        self._sessions = {key: session_of(model) for key, model in models.items()}

    def __call__(self, stage: StageGraph, inputs: Arrays) -> list[Array]:
        found: list[Array] = self._sessions[stage_key(stage)].run(list(stage.outputs), inputs)
        return found
