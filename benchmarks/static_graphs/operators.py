"""The operators of the embedded models' static graphs, by stage, with and without substitutions.

    python -m benchmarks.static_graphs.operators --json FILE

Every graph is traced and translated anew, which takes about 5 s of processor time each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from benchmarks.command import keep, machine_facts, options
from edgeflow.artifacts.manifest import StageName
from edgeflow.lab.export.graphs.graph_files import to_onnx, trace
from edgeflow.lab.export.graphs.rewrites import REWRITES, rewritten
from edgeflow.lab.export.graphs.shapes import ExportShapes
from edgeflow.lab.export.programs import program_of
from edgeflow.model_paths import resolve_model

MODELS = ("demo-flow", "demo", "demo-chat")
BATCH = ExportShapes(batches=(1,))
HIDDEN = -30.0
"""Any finite number works: the set of operators does not depend on it."""
UNLISTED: Mapping[str, tuple[str, ...]] = {
    "RKNN": ("GatherND", "Gelu", "Neg", "Not", "Reciprocal"),
    "QNN provider": ("ConstantOfShape", "Erf", "GatherND", "Reciprocal", "ScatterND"),
}
"""Operators of these graphs that the vendors' public lists call unsupported or leave out."""
Counts = Mapping[StageName, Mapping[str, int]]


def counts_of(model: str, rewrites: Iterable[str], stages: Collection[StageName] = tuple(StageName)) -> Counts:
    """How often each operator occurs in the graphs of these stages, in float32, for one candidate or sequence."""
    found: dict[StageName, Mapping[str, int]] = {}
    program = program_of(resolve_model(model, chat=True), BATCH)[1]
    for stage in (each for each in program.stages if each.stage in stages):
        traced = trace(stage)
        rewritten(traced.program.graph_module, tuple(rewrites), HIDDEN)
        found[stage.stage] = Counter(node.op_type for node in to_onnx(traced).graph)
    return found


def main() -> None:
    arguments = options(__doc__).parse_args()
    models = {model: {"plain": counts_of(model, ()), "substituted": counts_of(model, REWRITES)} for model in MODELS}
    for model, counts in models.items():
        for name, stages in counts.items():
            print(
                f"{model}, {name}: {', '.join(f'{stage.value} {sum(each.values())}' for stage, each in stages.items())}"
            )
    keep(arguments.json, {"machine": machine_facts(), "unlisted": UNLISTED, "models": models})


if __name__ == "__main__":
    main()
