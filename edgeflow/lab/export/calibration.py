"""Calibration of an export: recorded inputs of every stage, the substitutions, the mask's constant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgeflow.lab.export.graphs.graph_files import Traced
from edgeflow.lab.export.graphs.stages import ModelProgram
from edgeflow.lab.export.quantised.frames import RANDOM, calibration_frames
from edgeflow.lab.export.quantised.masks import calibrate_mask
from edgeflow.lab.export.quantised.stage_inputs import StageInputs, record_stage_inputs
from edgeflow.lab.export.quantised.stage_runs import stage_key
from edgeflow.lab.export.request import ExportRequest
from edgeflow.lab.progress import Report

MASK = "finite-mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """inputs: of each stage, empty where nothing is calibrated. rewrites: names. constant: of a finite mask."""

    rewrites: tuple[str, ...]
    inputs: StageInputs = field(default_factory=dict)
    constant: float | None = None
    remarks: tuple[str, ...] = ()


def calibrated(request: ExportRequest, program: ModelProgram, traced: Sequence[Traced], report: Report) -> Calibration:
    """Record the inputs of all stages where the request needs them.

    Quantised graphs need a finite mask, so they get one. ConfigError for frames that the model does not take.
    """
    if not request.calibrates:
        return Calibration(rewrites=request.rewrites)
    report("calibration frames", 0, 1)
    frames, source = calibration_frames(request.folder, program, request.frames, report)
    inputs = record_stage_inputs(program, frames, "first" if request.first_step else "all")
    rewrites = request.rewrites if MASK in request.rewrites else (*request.rewrites, MASK)
    return Calibration(
        rewrites=rewrites,
        inputs=inputs,
        constant=_constant(request, traced, inputs),
        remarks=tuple(_remarks(request, len(frames), source)),
    )


def _constant(request: ExportRequest, traced: Sequence[Traced], inputs: StageInputs) -> float:
    """The number of the model: the lowest of its stages."""
    found = (
        calibrate_mask(each, inputs[stage_key(each.stage)], request.precision(each.stage.stage)) for each in traced
    )
    return min(found, default=-math.inf)


def _remarks(request: ExportRequest, count: int, source: str) -> list[str]:
    steps = "the first step alone" if request.first_step else "all steps"
    found = [f"calibrated on {count} frames of {source}, {steps}"]
    if source == RANDOM:
        found.append("random frames are no calibration for a robot: give recorded ones with --frames")
    if request.quantises and MASK not in request.rewrites:
        found.append(f"{MASK} was made too: minus infinity leaves quantised scores no scale")
    return found
