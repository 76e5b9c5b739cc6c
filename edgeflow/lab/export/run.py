"""Exports a checkpoint from end to end: stages, calibration, substitutions, graphs, their check, the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
import onnxruntime
import onnxscript
import torch

from edgeflow.artifacts.manifest import Manifest, Rewritten, StageName
from edgeflow.lab.export.calibration import MASK, Calibration, calibrated
from edgeflow.lab.export.checking import check_error, check_operators, error_of
from edgeflow.lab.export.folder import check_out, copy_texts, replacing, write_manifest
from edgeflow.lab.export.graphs.graph_files import (
    SharedWeights,
    Traced,
    check_graph,
    to_onnx,
    trace,
    write_graph,
)
from edgeflow.lab.export.graphs.rewrites import rewritten
from edgeflow.lab.export.graphs.stages import ModelProgram, StageProgram
from edgeflow.lab.export.programs import program_of
from edgeflow.lab.export.quantised.qdq import quantise
from edgeflow.lab.export.quantised.stage_runs import stage_key
from edgeflow.lab.export.request import Exported, ExportOutcome, ExportRequest, Precision
from edgeflow.lab.progress import Report
from edgeflow.models.checkpoint import fingerprint

LIBRARIES: tuple[Any, ...] = (torch, onnx, onnxscript, onnxruntime)


def export(request: ExportRequest, report: Report) -> ExportOutcome:
    """Write an artifact; ConfigError or CheckpointError says what does not fit."""
    check_out(request.out, request.folder)
    report("load", 0, 1)
    family, program = program_of(request.folder, request.shapes)
    traced = _traced(program, report)
    calibration = calibrated(request, program, traced, report)
    made = [rewritten(each.program.graph_module, calibration.rewrites, calibration.constant) for each in traced]
    with replacing(request.out) as draft, SharedWeights(draft) as weights:
        copy_texts(request.folder, draft)
        named, exported = _named(traced), []
        for index, each in enumerate(named):
            report("graphs", index, len(named))
            exported.append(_write(request, each, calibration, weights, report))
        manifest = Manifest(
            family=family,
            fingerprint=fingerprint(request.folder),
            text=program.text,
            kv=program.kv,
            graphs=tuple(each.graph for each in exported),
            weights=(weights.entry,),
            rewrites=_rewrites(made, calibration.constant),
            preprocessing=program.preprocessing,
            versions={each.__name__: str(each.__version__) for each in LIBRARIES},
        )
        write_manifest(draft, manifest)
    return ExportOutcome(manifest=manifest, graphs=tuple(exported), remarks=calibration.remarks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """A traced stage and the file of its graph."""

    traced: Traced
    file: str

    @property
    def stage(self) -> StageProgram:
        return self.traced.stage


def _traced(program: ModelProgram, report: Report) -> list[Traced]:
    found = []
    for index, stage in enumerate(program.stages):
        report("trace", index, len(program.stages))
        found.append(trace(stage))
    return found


def _named(traced: Sequence[Traced]) -> list[_Named]:
    """towers.onnx, or towers-41.onnx and so on by rows, where a stage has several buckets; steps by batch."""
    counts = Counter(each.stage.stage for each in traced)

    def name(stage: StageProgram) -> str:
        size = stage.batch if stage.stage is StageName.STEP else stage.rows
        return stage.stage.value + (f"-{size}" if counts[stage.stage] > 1 else "") + ".onnx"

    return [_Named(traced=each, file=name(each.stage)) for each in traced]


def _write(
    request: ExportRequest, named: _Named, calibration: Calibration, weights: SharedWeights, report: Report
) -> Exported:
    """Write the graph of a stage and check it."""
    stage, precision = named.stage, request.precision(named.stage.stage)
    inputs = calibration.inputs.get(stage_key(stage), [])
    model = quantise(to_onnx(named.traced), inputs, precision, report)
    check_operators(model, named.file)
    graph = replace(write_graph(model, stage, weights.folder, weights, named.file), precision=precision.value)
    path = weights.folder / named.file
    check_graph(path)
    error = error_of(path, stage, inputs[0] if inputs else None)
    if precision is Precision.FLOAT32 and not calibration.rewrites:
        check_error(error, named.file)
    return Exported(graph=graph, size=path.stat().st_size, error=error)


def _rewrites(made: Sequence[Mapping[str, int]], constant: float | None) -> tuple[Rewritten, ...]:
    """The sites of each substitution, in all graphs."""
    names = made[0] if made else {}
    return tuple(
        Rewritten(name=name, sites=sum(each[name] for each in made), constant=constant if name == MASK else None)
        for name in names
    )
