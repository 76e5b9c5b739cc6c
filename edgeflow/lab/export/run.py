"""Exports a checkpoint from end to end: stages, calibration, substitutions, graphs, their check, the manifest."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import onnxscript
import torch
from rich.console import Console
from rich.markup import escape

from edgeflow.artifacts.manifest import Manifest, Rewritten, StageName
from edgeflow.lab.export.checking import check_error, check_operators, error_of
from edgeflow.lab.export.folder import check_out, copy_texts, replacing, write_manifest
from edgeflow.lab.export.graphs.chat import CHAT_FAMILIES
from edgeflow.lab.export.graphs.graph_files import (
    SharedWeights,
    Traced,
    check_graph,
    to_onnx,
    trace,
    write_graph,
)
from edgeflow.lab.export.graphs.rewrites import rewritten
from edgeflow.lab.export.graphs.stages import ModelProgram, StageGraph
from edgeflow.lab.export.programs import program_of
from edgeflow.lab.export.quantised.frames import RANDOM, calibration_frames
from edgeflow.lab.export.quantised.masks import calibrate_mask
from edgeflow.lab.export.quantised.qdq import quantise
from edgeflow.lab.export.quantised.stage_inputs import StageInputs, record_stage_inputs
from edgeflow.lab.export.quantised.stage_runs import stage_key
from edgeflow.lab.export.request import Exported, ExportOutcome, ExportRequest, Precision
from edgeflow.lab.progress import Report, reporting
from edgeflow.models.checkpoint import fingerprint
from edgeflow_client.loadtest.terminal import FoldingTable, table_console

LIBRARIES: tuple[Any, ...] = (torch, onnx, onnxscript, onnxruntime)
MASK = "finite-mask"
MB = 1e6


def export(request: ExportRequest, report: Report) -> ExportOutcome:
    """Write an artifact; ConfigError or CheckpointError if something does not fit."""
    check_out(request.out, request.folder)
    report("load", 0, 1)
    family, program = program_of(request.folder, request.shapes)
    traced = _traced(program, report)
    calibration = calibrated(request, program, traced, report)
    made = [rewritten(each.program.graph_module, calibration.rewrites, calibration.constant) for each in traced]
    with replacing(request.out) as draft, SharedWeights(draft) as weights:
        copy_texts(request.folder, draft)
        exported = []
        for index, (each, file) in enumerate(zip(traced, _files(traced), strict=True)):
            report("graphs", index, len(traced))
            exported.append(_write(request, each, file, calibration=calibration, weights=weights, report=report))
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


def _traced(program: ModelProgram, report: Report) -> list[Traced]:
    found = []
    for index, stage in enumerate(program.stages):
        report("trace", index, len(program.stages))
        found.append(trace(stage))
    return found


def _files(traced: Sequence[Traced]) -> list[str]:
    """File names: towers.onnx, or towers-41.onnx and so on by rows if a stage has several buckets; steps by batch
    size.
    """
    counts = Counter(each.stage.stage for each in traced)

    def name(stage: StageGraph) -> str:
        size = stage.batch if stage.stage is StageName.STEP else stage.rows
        return stage.stage.value + (f"-{size}" if counts[stage.stage] > 1 else "") + ".onnx"

    return [name(each.stage) for each in traced]


def _write(
    request: ExportRequest,
    traced: Traced,
    file: str,
    *,
    calibration: GraphCalibration,
    weights: SharedWeights,
    report: Report,
) -> Exported:
    """Write the graph of a stage to a file in the weights' folder, and check it."""
    stage, precision = traced.stage, request.precision(traced.stage.stage)
    inputs = calibration.inputs.get(stage_key(stage), [])
    model = quantise(to_onnx(traced), inputs, precision, report)
    check_operators(model, file)
    graph = replace(write_graph(model, stage, weights.folder, weights, file), precision=precision.value)
    path = weights.folder / file
    check_graph(path)
    error = error_of(path, stage, inputs[0] if inputs else None)
    if precision is Precision.FLOAT32 and not calibration.rewrites:
        check_error(error, file)
    return Exported(graph=graph, size=path.stat().st_size, error=error)


def _rewrites(made: Sequence[Mapping[str, int]], constant: float | None) -> tuple[Rewritten, ...]:
    """The number of changed places of each substitution, over all graphs."""
    names = made[0] if made else {}
    return tuple(
        Rewritten(name=name, sites=sum(each[name] for each in made), constant=constant if name == MASK else None)
        for name in names
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCalibration:
    """Inputs and settings of a graph's quantisation."""

    rewrites: tuple[str, ...]
    """Names of the substitutions."""
    inputs: StageInputs = field(default_factory=dict)
    """The inputs of each stage; empty if nothing is calibrated."""
    constant: float | None = None
    """The constant of a finite mask."""
    remarks: tuple[str, ...] = ()


def calibrated(
    request: ExportRequest, program: ModelProgram, traced: Sequence[Traced], report: Report
) -> GraphCalibration:
    """Record the inputs of all stages if the request needs them.

    Quantised graphs need a finite mask and get one. ConfigError for frames that do not fit the model.
    """
    if not request.needs_calibration:
        return GraphCalibration(rewrites=request.rewrites)
    report("calibration frames", 0, 1)
    frames, source = calibration_frames(request.folder, program, request.frames, report)
    inputs = record_stage_inputs(program, frames, "first" if request.first_step else "all")
    rewrites = request.rewrites if MASK in request.rewrites else (*request.rewrites, MASK)
    return GraphCalibration(
        rewrites=rewrites,
        inputs=inputs,
        constant=_constant(request, traced, inputs),
        remarks=tuple(_remarks(request, len(frames), source)),
    )


def _constant(request: ExportRequest, traced: Sequence[Traced], inputs: StageInputs) -> float:
    """The number for the whole model: the lowest of its stages."""
    found = (
        calibrate_mask(each, inputs[stage_key(each.stage)], request.precision(each.stage.stage)) for each in traced
    )
    return min(found, default=-math.inf)


def _remarks(request: ExportRequest, count: int, source: str) -> list[str]:
    steps = "only the first step" if request.first_step else "all steps"
    found = [f"calibrated on {count} frames of {source}, {steps}"]
    if source == RANDOM:
        found.append("random frames are no calibration for a robot: give recorded ones with --frames")
    if request.is_quantised and MASK not in request.rewrites:
        found.append(f"{MASK} was made too: minus infinity leaves quantised scores no scale")
    return found


def export_command(model: str, request: ExportRequest, *, as_json: bool) -> None:
    """Export a checkpoint and print what was written."""
    with reporting(Console(stderr=True)) as report:
        outcome = export(request, report)
    if as_json:
        print(json.dumps(outcome.as_json(), indent=2))
    else:
        _show(model, request.out, outcome)


def _show(model: str, out: Path, outcome: ExportOutcome) -> None:
    manifest = outcome.manifest
    table = FoldingTable("graph", "rows", "past", "batch", "precision", "operators", "MB", "largest\nerror")
    table.title = escape(f"{model}, {manifest.family}: {manifest.kv.positions} positions of a slot")
    for each in outcome.graphs:
        graph = each.graph
        sizes = (str(size) for size in (graph.rows, graph.past, graph.batch))
        count = str(sum(graph.operators.values()))
        table.add_row(graph.file, *sizes, graph.precision, count, f"{each.size / MB:.2f}", f"{each.error:.1e}")
    table_console().print(table)
    print(f"{sum(each.size for each in manifest.weights) / MB:.1f} MB of weights, shared by all graphs")
    for rewrite in manifest.rewrites:
        constant = "" if rewrite.constant is None else f", {rewrite.constant:.1f} for hidden scores"
        print(f"{rewrite.name}: {rewrite.sites} sites{constant}")
    for line in outcome.remarks:
        print(line)
    print(f"written: {out}; {how_served(manifest.family, out)}")


def how_served(family: str, out: Path) -> str:
    """How to serve the artifact: a policy by an option, a chat model by the configuration."""
    if family in CHAT_FAMILIES:
        return f"serve it as chat.model of a configuration: {out}"
    return f"serve it with `edgeflow serve --model {out}`"
