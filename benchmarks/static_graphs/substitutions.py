"""The substitutions of operators in the embedded flow policy's graphs, one by one and together.

python -m benchmarks.static_graphs.substitutions --json FILE

Chunk errors on held-out frames against float32 graphs without substitutions; in float32, and with all stages in INT16.
Without finite-mask INT16 graphs are rejected; here they hide scores by the least float32 number, to show what it does.
Times are those of a chunk by the float32 graphs on this machine.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import torch

from benchmarks.command import keep, machine_facts, options
from benchmarks.static_graphs.demo_flow import REWRITES, DemoFlow, Models, quantised
from edgeflow.lab.export.quantised.errors import flow_errors
from edgeflow.lab.export.quantised.flow_loop import Denoised
from edgeflow.lab.export.quantised.stage_inputs import StageInputs
from edgeflow.lab.export.quantised.stage_runs import GraphRun
from edgeflow.lab.export.request import Precision

MASK = "finite-mask"
TIMED, ROUNDS = 16, 3
"""Chunks timed per round, and rounds."""
LEAST = torch.finfo(torch.float32).min
VARIANTS: dict[str, tuple[str, ...]] = {
    "none": (),
    **{name: (name,) for name in REWRITES},
    **{f"all but {name}": tuple(each for each in REWRITES if each != name) for name in REWRITES},
    "all": REWRITES,
}


def operators(models: Models) -> dict[str, int]:
    """How many of each, in all graphs."""
    counts = Counter(node.op_type for model in models.values() for node in model.graph)
    return dict(sorted(counts.items()))


def in_float32(demo: DemoFlow, expected: Sequence[Denoised], rewrites: tuple[str, ...], mask: float) -> dict[str, Any]:
    """Errors, operators and the time of a chunk of graphs with some substitutions."""
    models, sites = demo.models(rewrites, mask)
    run, times = GraphRun(models), []
    errors = flow_errors(expected, demo.answers(run), demo.policy.actions)
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        demo.answers(run, TIMED)
        times.append((time.perf_counter() - begin) / TIMED)
    counted = operators(models)
    return {
        "sites": sites,
        "errors": asdict(errors),
        "operators": counted,
        "operators_in_all": sum(counted.values()),
        "chunk_ms": 1000 * median(times),
    }


def in_int16(
    demo: DemoFlow, expected: Sequence[Denoised], recorded: StageInputs, rewrites: tuple[str, ...], mask: float
) -> dict[str, Any]:
    """Errors of graphs in INT16."""
    constant = mask if MASK in rewrites else LEAST
    models, _ = demo.models((*(each for each in rewrites if each != MASK), MASK), constant)
    return asdict(demo.errors(expected, quantised(models, recorded, Precision.INT16)))


def main() -> None:
    arguments = options(__doc__).parse_args()
    demo = DemoFlow()
    recorded = demo.recorded("all")
    mask = demo.mask(recorded, Precision.INT16)
    expected = demo.answers(GraphRun(demo.models((), None)[0]))
    rows = {}
    for name, rewrites in VARIANTS.items():
        row = in_float32(demo, expected, rewrites, mask)
        row["int16_errors"] = in_int16(demo, expected, recorded, rewrites, mask)
        rows[name] = row
        print(
            f"{name:>20}: {row['operators_in_all']} operators, {row['chunk_ms']:.1f} ms, "
            f"chunk {row['errors']['x'][-1]:.2e}, INT16 {row['int16_errors']['x'][-1]:.2e}; sites {row['sites']}",
            flush=True,
        )
    report = {"machine": machine_facts(), "hidden_scores": mask, "held_out": len(demo.held_out), "variants": rows}
    keep(arguments.json, report)


if __name__ == "__main__":
    main()
