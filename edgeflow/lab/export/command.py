"""The work of `edgeflow export`: from the options of the command to what it prints."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from edgeflow.lab.export.graphs.chat import CHAT_FAMILIES
from edgeflow.lab.export.request import ExportOutcome, ExportRequest
from edgeflow.lab.export.run import export
from edgeflow.lab.progress import reporting
from edgeflow_client.loadtest.terminal import FoldingTable, table_console

MB = 1e6


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
    """The way to serve an artifact: a policy by an option, a chat model by the configuration."""
    if family in CHAT_FAMILIES:
        return f"serve it as chat.model of a configuration: {out}"
    return f"serve it with `edgeflow serve --model {out}`"
