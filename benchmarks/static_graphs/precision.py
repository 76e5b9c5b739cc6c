"""Errors of the embedded flow policy's quantised graphs, calibrated over all denoising steps or over the first.

python -m benchmarks.static_graphs.precision --json FILE

On held-out frames of the demo's closed loop, against the same graphs in float32 (all three substitutions). ONNX Runtime
computes 16 bits in floats on the CPU: these are errors, not speeds. Once with all stages quantised, and once with only
the steps, where the calibration matters. Exits with code 1 where the bar is missed.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from benchmarks.command import keep, machine_facts, options
from benchmarks.static_graphs.demo_flow import REWRITES, DemoFlow, Models, quantised
from edgeflow.artifacts.manifest import StageName
from edgeflow.lab.export.quantised.errors import FlowErrors
from edgeflow.lab.export.quantised.stage_inputs import StageInputs
from edgeflow.lab.export.quantised.stage_runs import GraphRun
from edgeflow.lab.export.request import Precision

PRECISIONS = (Precision.INT16, Precision.W8A16, Precision.W8A8)
LEAST_GAIN = 2.0
"""The least factor by which calibration over all steps reduces the chunk's error at W8A8."""
ALL, STEPS = "all stages", "steps alone"


def measured(demo: DemoFlow) -> dict[str, Any]:
    """The errors of every precision, calibration and part of the graphs."""
    recorded = {"all": demo.recorded("all"), "first": demo.recorded("first")}
    found: dict[str, Any] = {}
    for precision in PRECISIONS:
        constant = demo.mask(recorded["all"], precision)
        floats, _ = demo.models(REWRITES, constant)
        expected = demo.answers(GraphRun(floats))
        found[precision.value] = {"hidden_scores": constant}
        for calibration, inputs in recorded.items():
            rows = {part: demo.errors(expected, models) for part, models in _parts(floats, inputs, precision).items()}
            found[precision.value][calibration] = {part: _row(each) for part, each in rows.items()}
            for part, each in rows.items():
                print(f"{precision.value:>6} calibrated on {calibration:>5}, {part}: {_shown(each)}", flush=True)
    return found


def _parts(floats: Models, inputs: StageInputs, precision: Precision) -> dict[str, Models]:
    models = quantised(floats, inputs, precision)
    steps = {key: models[key] if key.stage is StageName.STEP else model for key, model in floats.items()}
    return {ALL: models, STEPS: steps}


def _row(errors: FlowErrors) -> dict[str, Any]:
    return {**asdict(errors), "chunk": errors.chunk}


def _shown(errors: FlowErrors) -> str:
    steps = ", ".join(f"{each:.2e}" for each in errors.velocity)
    return f"chunk {errors.chunk:.2e}; velocities {steps}"


def gains(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The chunk's error calibrated on the first step over that calibrated on all."""
    return {
        name: {part: each["first"][part]["chunk"] / each["all"][part]["chunk"] for part in (ALL, STEPS)}
        for name, each in found.items()
    }


def main() -> None:
    arguments = options(__doc__).parse_args()
    demo = DemoFlow()
    found = measured(demo)
    gained = gains(found)
    for name, each in gained.items():
        print(f"{name:>6}: first step over all steps, {', '.join(f'{part} {gain:.2f}' for part, gain in each.items())}")
    ok = gained[Precision.W8A8.value][ALL] >= LEAST_GAIN
    report = {
        "machine": machine_facts(),
        "frames": len(demo.frames),
        "held_out": len(demo.held_out),
        "actions": demo.action_units(),
        "errors": found,
        "gains": gained,
        "bars": [{"bar": f"gain at w8a8, {ALL}: {LEAST_GAIN:g}", "measured": gained["w8a8"][ALL], "ok": ok}],
    }
    keep(arguments.json, report)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
