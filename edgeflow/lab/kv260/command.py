"""`edgeflow cosim`: tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from edgeflow.lab.kv260 import constants
from edgeflow.lab.kv260.hybrid import HybridRun, compare_run
from edgeflow.lab.kv260.placement import TokenTime
from edgeflow.lab.kv260.report import ROWS, CosimModel, CosimReport, cosimulate, subject
from edgeflow.lab.kv260.sizes import MIB
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.terminal import FoldingTable, table_console

COLUMNS = ("A53s", "paper's linears offloaded", "all linears offloaded")
"""Columns of the table: the placements that differ within a layer."""


def cosim_command(
    model: str, *, group: int | None, macros: Path | None, prompt: str | None, tokens: int, as_json: bool
) -> int:
    """Print a co-simulation; exit code 1 if a run gives other tokens than the reference."""
    about = subject(model, group)
    report = cosimulate(about, _run(about, macros, prompt, tokens))
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        _print(report, table_console())
    return 0 if report.run is None or report.run.equal else 1


def _run(about: CosimModel, macros: Path | None, prompt: str | None, tokens: int) -> HybridRun | None:
    if prompt is None:
        if macros is not None:
            raise ConfigError("macros: give a prompt too, with --prompt")
        return None
    if about.checkpoint is None:
        raise ConfigError(f"prompt: {about.name} is a configuration without weights: give a checkpoint directory")
    return compare_run(about.checkpoint, macros, prompt, tokens)


def _print(report: CosimReport, console: Console) -> None:
    console.print(_layer_table(report))
    console.print(_token_table(report))
    console.print(_size_table(report))
    for note in report.notes:
        console.print(escape(note), highlight=False)
    if report.run is not None:
        _print_run(report.run, console)


def _layer_table(report: CosimReport) -> FoldingTable:
    """A layer as in Table I. Placements that differ only in the head share a column."""
    columns: list[TokenTime] = []
    for time in report.times:
        if all(time.layer != other.layer for other in columns):
            columns.append(time)
    table = FoldingTable(title=escape(f"{report.subject.name}: a layer, one token, microseconds"))
    table.add_column("")
    for name in ("Table I", *COLUMNS):
        table.add_column(name, justify="right")
    table.add_column("limits,\nlast column")
    paper = sum(constant.value for constant in constants.TABLE_I.values())
    for index, (name, constant) in enumerate(constants.TABLE_I.items()):
        cells = [_time(constant.value, paper)]
        cells += [_time(time.layer[index].microseconds, time.layer_microseconds) for time in columns]
        table.add_row(ROWS[name], *cells, _limits(columns[-1].layer[index].limits))
    totals = [_time(total, total) for total in (paper, *(time.layer_microseconds for time in columns))]
    table.add_row("Total", *totals, "", style="bold")
    return table


def _time(microseconds: float, total: float) -> str:
    return f"{microseconds:,.1f} ({100 * microseconds / total:.2f}%)"


def _limits(limits: Mapping[str, float]) -> str:
    """The limits, with their microseconds if there are several."""
    return "\n".join(f"{limit} {time:.1f}" if len(limits) > 1 else limit for limit, time in limits.items())


def _token_table(report: CosimReport) -> FoldingTable:
    table = FoldingTable(title="a token: milliseconds, tokens per second")
    table.add_column("placement")
    for name in ("layers", "head", "token", "tokens/s", "no overlap", "paper"):
        table.add_column(name, justify="right")
    table.add_column("the time goes to")
    for time in report.times:
        head = f"{time.head.microseconds / 1e3:.2f}" if time.head else "none"
        layers = f"{time.layers * time.layer_microseconds / 1e3:.2f}"
        rates = f"{time.rate:.2f}", f"{time.rate_in_turn:.2f}"
        paper = f"{time.placement.paper:.2f}" if time.placement.paper and report.is_paper_network else ""
        shares = "\n".join(f"{limit} {100 * share:.1f} %" for limit, share in time.shares().items())
        table.add_row(time.placement.name, layers, head, f"{time.milliseconds:.2f}", *rates, paper, shares)
    return table


def _size_table(report: CosimReport) -> FoldingTable:
    sizes, second = report.sizes, report.second_head
    table = FoldingTable("weights", "MiB", "of FP16", title=f"sizes, groups of {report.subject.group}")
    for name, count in (
        ("FP16", sizes.fp16),
        ("AutoAWQ file", sizes.autoawq),
        ("macro file with embedding", sizes.macro),
        ("macro file and a head in macros", sizes.macro + second),
    ):
        table.add_row(name, f"{count / MIB:.1f}", f"{100 * count / sizes.fp16:.1f} %")
    return table


def _print_run(run: HybridRun, console: Console) -> None:
    console.print(escape(run.text), highlight=False)
    verdict = (
        f"[green]all {len(run.tokens)} tokens equal the W4A16 reference's in float32[/]"
        if run.equal
        else f"[red]tokens differ from the W4A16 reference's: {run.tokens} for {run.reference}[/]"
    )
    console.print(f"{verdict}; {run.ms_per_token:.0f} ms per token to simulate here", highlight=False)
