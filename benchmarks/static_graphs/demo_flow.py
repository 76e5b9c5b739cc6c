"""The embedded flow policy as graphs: calibration frames, held-out frames, and its answers by any graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from edgeflow.lab.export.graphs.flow import FlowExport
from edgeflow.lab.export.graphs.graph_files import to_onnx, trace
from edgeflow.lab.export.graphs.rewrites import rewritten
from edgeflow.lab.export.graphs.shapes import ExportShapes
from edgeflow.lab.export.programs import program_of
from edgeflow.lab.export.quantised.errors import FlowErrors, flow_errors
from edgeflow.lab.export.quantised.flow_loop import Denoised, FlowLoop, candidates_of
from edgeflow.lab.export.quantised.frames import FRAMES, demo_frames, loaded, prepared
from edgeflow.lab.export.quantised.masks import calibrate_mask
from edgeflow.lab.export.quantised.qdq import quantise
from edgeflow.lab.export.quantised.stage_inputs import StageInputs, Steps, record_stage_inputs
from edgeflow.lab.export.quantised.stage_runs import GraphRun, Run, StageKey, stage_key
from edgeflow.lab.export.request import Precision
from edgeflow.lab.verify.comparison import silent
from edgeflow.model_paths import EMBEDDED_FLOW_POLICY

HELD_OUT = 96
REWRITES = ("erf-gelu", "rope-concat", "finite-mask")
Models = Mapping[StageKey, ir.Model]


class DemoFlow:
    """frames: calibrated on. held_out: of other episodes."""

    def __init__(self) -> None:
        self.policy = loaded(EMBEDDED_FLOW_POLICY)
        recorded = demo_frames(EMBEDDED_FLOW_POLICY, silent, held_out=HELD_OUT)
        self.frames = prepared(self.policy, [each.observation for each in recorded if not each.held_out], FRAMES)
        self.held_out = prepared(self.policy, [each.observation for each in recorded if each.held_out], HELD_OUT)
        _, self.program = program_of(EMBEDDED_FLOW_POLICY, ExportShapes(batches=(1,)))
        assert isinstance(self.program.source, FlowExport)
        self._loop = FlowLoop(self.program.source, self.program, self.program.text, 1)

    def recorded(self, steps: Steps) -> StageInputs:
        """Inputs of the stages over the calibration frames."""
        return record_stage_inputs(self.program, self.frames, steps)

    def mask(self, recorded: StageInputs, precision: Precision) -> float:
        """The number for hidden scores."""
        return min(calibrate_mask(trace(each), recorded[stage_key(each)], precision) for each in self.program.stages)

    def models(self, rewrites: Sequence[str], constant: float | None) -> tuple[Models, dict[str, int]]:
        """Graphs of floats, and the sites of each substitution."""
        found, sites = {}, dict.fromkeys(rewrites, 0)
        for stage in self.program.stages:
            traced = trace(stage)
            for name, count in rewritten(traced.program.graph_module, tuple(rewrites), constant).items():
                sites[name] += count
            found[stage_key(stage)] = to_onnx(traced)
        return found, sites

    def answers(self, run: Run, count: int | None = None) -> list[Denoised]:
        """The chunks of the held-out frames, or of the first so many."""
        return [self._loop.run([each], run) for each in candidates_of(self.held_out[:count])]

    def errors(self, expected: Sequence[Denoised], models: Models) -> FlowErrors:
        """The errors of graphs on the held-out frames."""
        return flow_errors(expected, self.answers(GraphRun(models)), self.policy.actions)

    def action_units(self) -> list[str]:
        """name in unit, of each number of an action."""
        schema = self.policy.action_schema()
        return [f"{name} in {unit}" for name, unit in zip(schema.names, schema.units, strict=True)]


def quantised(models: Models, recorded: StageInputs, precision: Precision) -> Models:
    """All graphs in a precision."""
    return {key: quantise(model, recorded[key], precision, silent) for key, model in models.items()}
