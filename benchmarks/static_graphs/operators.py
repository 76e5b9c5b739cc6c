"""The tables of docs/develop/static-graphs.md: operators of the embedded models, with and without substitutions.

    python -m benchmarks.static_graphs.operators             print them
    python -m benchmarks.static_graphs.operators --write     put them into the page

Every graph is traced and translated anew, which takes about 5 s of processor time each.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from edgeflow.artifacts.manifest import StageName
from edgeflow.lab.export.graphs.graph_files import to_onnx, trace
from edgeflow.lab.export.graphs.rewrites import REWRITES, rewritten
from edgeflow.lab.export.graphs.shapes import ExportShapes
from edgeflow.lab.export.programs import program_of
from edgeflow.model_paths import resolve_model

PAGE = Path(__file__).parents[2] / "docs" / "develop" / "static-graphs.md"
MODELS = ("demo-flow", "demo", "demo-chat")
BATCH = ExportShapes(batches=(1,))
HIDDEN = -30.0
"""Any finite number does: it does not change which operators there are."""
UNLISTED: Mapping[str, frozenset[str]] = {
    "RKNN": frozenset(("GatherND", "Gelu", "Neg", "Not", "Reciprocal")),
    "QNN provider": frozenset(("ConstantOfShape", "Erf", "GatherND", "Reciprocal", "ScatterND")),
}
"""Operators of these graphs that public lists call unsupported or leave out; the page names the lists."""
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


def table(plain: Counts, substituted: Counts) -> str:
    """Markdown: a row for each operator, columns for the stages, as exported and with all substitutions.

    A number that stays the same is written once.
    """
    names = sorted({name for counts in (plain, substituted) for stage in counts.values() for name in stage})
    head = ["operator", *(stage.value for stage in StageName), "not listed by"]
    lines = [head, ["---", *["---:"] * len(StageName), "---"]]
    for name in names:
        cells = [_cell(plain[stage].get(name, 0), substituted[stage].get(name, 0)) for stage in StageName]
        lines.append([f"`{name}`", *cells, ", ".join(vendor for vendor, names in UNLISTED.items() if name in names)])
    sums = [_cell(sum(plain[stage].values()), sum(substituted[stage].values())) for stage in StageName]
    return "".join(f"| {' | '.join(line)} |\n" for line in [*lines, ["all", *sums, ""]])


def read_table(page: str, model: str) -> dict[StageName, dict[str, int]]:
    """The counts as exported that a page shows of a model; ValueError where it has none."""
    shown = re.search(f"{_start(model)}(.*?)<!-- end -->", page, re.DOTALL)
    if shown is None:
        raise ValueError(f"{PAGE.name}: one place {_start(model).strip()} … <!-- end --> is needed")
    found: dict[StageName, dict[str, int]] = {stage: {} for stage in StageName}
    for name, *cells in re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \|", shown[1], re.MULTILINE):
        for stage, cell in zip(StageName, cells, strict=True):
            count = int(cell.partition("→")[0].strip() or 0)
            found[stage] |= {name: count} if count else {}
    return found


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with these tables, by model, in their places."""
    for model, text in tables.items():
        read_table(page, model)
        page = re.sub(f"{_start(model)}.*?<!-- end -->", f"{_start(model)}{text}<!-- end -->", page, flags=re.DOTALL)
    return page


def _start(model: str) -> str:
    return f"<!-- operators: {model} -->\n"


def _cell(plain: int, substituted: int) -> str:
    if plain == substituted:
        return str(plain or "")
    return f"{plain} → {substituted}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.static_graphs.operators", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put them into docs/develop/{PAGE.name}")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    arguments = parser.parse_args()
    tables = {model: table(counts_of(model, ()), counts_of(model, REWRITES)) for model in arguments.models}
    if arguments.write:
        PAGE.write_text(filled(PAGE.read_text(), tables))
    else:
        print("\n".join(f"{model}\n\n{text}" for model, text in tables.items()))


if __name__ == "__main__":
    main()
