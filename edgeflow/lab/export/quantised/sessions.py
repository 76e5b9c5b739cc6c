"""Graphs that are not written yet, in ONNX Runtime on the CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from edgeflow.artifacts.sessions import CPU_PROVIDER, Runtime, session_options
from edgeflow.lab.export.graphs.stages import StageProgram
from edgeflow.lab.export.quantised.stage_runs import Array, Arrays, StageKey, stage_key

FILE, WEIGHTS = "graph.onnx", "graph.data"


def session_of(model: ir.Model) -> Any:
    """A session over a graph, by way of a temporary file: a graph in memory may have 2 GB at most."""
    import onnxruntime

    options = session_options(Runtime(threads=torch.get_num_threads()))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE
        ir.save(model, path, external_data=WEIGHTS)
        return onnxruntime.InferenceSession(path, options, providers=[CPU_PROVIDER])


class GraphRun:
    """Computes stages by their graphs: a Run."""

    def __init__(self, models: Mapping[StageKey, ir.Model]) -> None:
        self._sessions = {key: session_of(model) for key, model in models.items()}

    def __call__(self, stage: StageProgram, inputs: Arrays) -> list[Array]:
        found: list[Array] = self._sessions[stage_key(stage)].run(list(stage.outputs), inputs)
        return found
