"""`edgeflow ops` and `edgeflow tune`: their tables and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape

from edgeflow.engine.placement import absent_line, check_head, choose_device, operator_table, power_line
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.overlay import tune_options
from edgeflow.lab.progress import reporting
from edgeflow.lab.tuning.operators import refusals, regress, serving, shown_table, tune, unmatched
from edgeflow.lab.tuning.subject import dtype_for, model_shape
from edgeflow_client.loadtest.terminal import FoldingTable, table_console

DEFAULT_OUT = "operators-{profile}.json"


def ops_command(
    model: str, hardware: str, dtype: str, rows: int, overlay: Path | None, weights: str, head: str, *, as_json: bool
) -> None:
    """Show which implementation serves each operator, and why."""
    where = Hardware.named(hardware) if hardware else Hardware.of(choose_device("auto"))
    shape, number = model_shape(model, rows, head), dtype_for(model, dtype, where)
    operators = shown_table(overlay, number, weights, tune_options(model, head))
    check_head(operators, head, where, number)
    lines = serving(operators, shape, where, number)
    if as_json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
        return
    table = FoldingTable(
        "operator", "stage", "shape", "implementation", "why", title=escape(f"{model} on {where.profile}")
    )
    for line in lines:
        params = " ".join(f"{name}={value}" for name, value in line.impl_params.items())
        why = "; ".join((line.why, *line.passed_over))
        name = _operator(line.op_name, line.layer_role, line.kv)
        table.add_row(name, line.stage, line.shape_sig, escape(f"{line.impl_id} {params}".strip()), escape(why))
    console = table_console()
    console.print(table)
    if overlay is not None:
        idle = unmatched(operators, shape, where, overlay)
        refused = refusals(operators, shape, where, number)
        notes = [
            absent_line(overlay),
            power_line(overlay),
            *(f"{overlay.name}: matches no call above: {entry}" for entry in idle),
            *(f"{overlay.name}: the service would refuse it: {told}" for told in refused),
        ]
        for note in filter(None, notes):
            console.print(escape(note), highlight=False)


def tune_command(
    model: str,
    device: str,
    dtype: str,
    rows: int,
    out: Path | None,
    samples: int,
    again: bool,
    weights: str,
    head: str,
    threads: int,
    *,
    as_json: bool,
) -> int:
    """Write an overlay, or check an existing one; exit code 1 if the check fails."""
    here = choose_device(device)
    path = out or Path(DEFAULT_OUT.format(profile=Hardware.of(here).profile))
    if again:
        return _regress_command(path, here, dtype, samples, as_json=as_json)
    shape, number = model_shape(model, rows, head), dtype_for(model, dtype, Hardware.of(here))
    check_head(operator_table(None, weights, here, number), head, Hardware.of(here), number)
    with reporting(Console(stderr=True)) as report:
        overlay = tune(shape, here, number, out=path, samples=samples, report=report, weights=weights, threads=threads)
    if as_json:
        print(overlay.model_dump_json(indent=2))
        return 0
    table = FoldingTable("operator", "stage", "shape", "implementation", "µs", "before", title=escape(f"{path}"))
    for entry in overlay.entries:
        params = " ".join(f"{name}={value}" for name, value in entry.impl_params.items())
        times = ["" if us is None else f"{us:.1f}" for us in (entry.us, entry.default_us)]
        name = _operator(entry.op_name, entry.layer_role, entry.kv)
        table.add_row(name, entry.stage, entry.shape_sig, escape(f"{entry.impl_id} {params}".strip()), *times)
    table_console().print(table)
    return 0


def _regress_command(path: Path, device: torch.device, dtype: str, samples: int, *, as_json: bool) -> int:
    with reporting(Console(stderr=True)) as report:
        verdicts = list(regress(path, device, dtype, samples, report))
    complaints = sum(bool(verdict.complaint) for verdict in verdicts)
    if as_json:
        print(json.dumps([asdict(verdict) for verdict in verdicts], indent=2))
        return 1 if complaints else 0
    table = FoldingTable(
        "operator", "stage", "shape", "implementation", "µs", "default", "", title=escape(f"{path}, again")
    )
    for verdict in verdicts:
        key, times = verdict.key, (f"{verdict.us:.1f}", f"{verdict.default_us:.1f}")
        mark = f"[red]{escape(verdict.complaint)}[/]" if verdict.complaint else "[green]ok[/]"
        table.add_row(
            _operator(key.op_name, key.layer_role, key.kv), key.stage, key.shape_sig, verdict.impl_id, *times, mark
        )
    table_console().print(table)
    return 1 if complaints else 0


def _operator(op_name: str, role: str, kv: str) -> str:
    named = ", ".join(filter(None, (role, kv and f"{kv} KV")))
    return f"{op_name} ({named})" if named else op_name
