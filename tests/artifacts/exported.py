"""Small networks written as artifacts, by torch's older exporter, which takes a tenth of the time. It does not trace
vision towers."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx_ir as ir
import torch
from torch import nn

from edgeflow.artifacts.manifest import Manifest, StageName
from edgeflow.lab.export.folder import write_manifest
from edgeflow.lab.export.graphs.graph_files import SharedWeights, to_onnx, trace, write_graph
from edgeflow.lab.export.graphs.stages import ModelProgram, StageGraph

OPSET = 18


class _ExportedRun(nn.Module):
    def __init__(self, stage: StageGraph) -> None:
        super().__init__()
        self._run = stage.run

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self._run(*inputs))


def write_program(
    folder: Path, program: ModelProgram, *, family: str = "tiny", fingerprint: str = "", vision: bool = False
) -> Manifest:
    """All stages of a program as graphs, with their manifest. vision: it has vision towers."""
    folder.mkdir(parents=True, exist_ok=True)
    with SharedWeights(folder) as weights:
        graphs = []
        for stage in program.stages:
            file = f"{stage.stage.value}_{stage.rows}_{stage.batch}.onnx"
            new = vision and stage.stage is StageName.TOWERS
            model = to_onnx(trace(stage)) if new else _traced(stage, folder / file)
            graphs.append(write_graph(model, stage, folder, weights, file))
        entry = weights.entry
    manifest = Manifest(
        family=family,
        fingerprint=fingerprint or "0" * 64,
        text=program.text,
        kv=program.kv,
        graphs=tuple(graphs),
        weights=(entry,),
        preprocessing=program.preprocessing,
    )
    write_manifest(folder, manifest)
    return manifest


def _traced(stage: StageGraph, file: Path) -> ir.Model:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _ExportedRun(stage).eval(),
            tuple(stage.inputs.values()),
            str(file),
            dynamo=False,
            opset_version=OPSET,
            input_names=list(stage.inputs),
            output_names=list(stage.outputs),
        )
    return ir.load(file)
