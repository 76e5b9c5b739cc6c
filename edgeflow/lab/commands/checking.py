"""Commands that compare a checkpoint with recordings, check a policy, and compare operators with each other."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from edgeflow.commands.options import (
    Json,
    OptionalFloat,
    OptionalMode,
    OptionalPath,
    Settings,
    number,
    overrides_of,
)
from edgeflow.contract import KVName
from edgeflow.lab.progress import reporting
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.terminal import FoldingTable, table_console

WEIGHTS = "Precision of the weight matrices: float, int8 (CPU) or fp8 (CUDA)."
HEAD = "Format of a chat model's head, like chat.head in the configuration: float or int8 (CPU)."
TUNED = "Checkpoint directory, hub id, demo, demo-flow, demo-chat, or a published shape; a wrong name lists all."
DTYPE = "float32, float16 or bfloat16; default: the service's choice for the model on that device."
VERIFIED_HELP = (
    "serial, pipelined or speculative; depth: every depth between serial and pipelined; auto: every pace that auto can "
    "choose. Not every family has all of them."
)


def verify(
    directory: Annotated[Path, typer.Argument(help="Directory of a checkpoint with recorded cases.")],
    mode: Annotated[OptionalMode, typer.Option(metavar="MODE", help=VERIFIED_HELP)] = None,
    kv: Annotated[
        KVName,
        typer.Option(
            metavar="NAME",
            help="model; or int8, fp8, int4: measure the error and the memory of that KV format. The bounds are wide "
            "enough for random weights: ok means that nothing is broken, not that the model is as good as before.",
        ),
    ] = "model",
    weights: Annotated[
        str, typer.Option(help="float; or fp8: measure the error of FP8 weights and activations, on any CPU.")
    ] = "float",
    operators: Annotated[
        OptionalPath, typer.Option(metavar="FILE", help="Operator overlay for a control policy.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "cpu",
    family: Annotated[str, typer.Option(help="Family of a policy; default: the one named in the bundle.")] = "",
    artifact: Annotated[
        OptionalPath,
        typer.Option(
            metavar="FOLDER",
            help="Folder written by `edgeflow export` from this bundle: its graphs are checked. Graphs of other "
            "precisions than float32, or with substituted operators, have no bound.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare a checkpoint's outputs with recordings of the original.

    The comparison is in float32. It decodes each recorded case a few times: seconds for a small model, minutes for a
    7B model on a CPU.

    Exits with code 1 if any output differs by more than its tolerance. Default modes: serial, pipelined and, if tokens
    are drafted, speculative; chat models are checked in their own modes. For the bundle of a memory gate or an EAGLE-3
    head, the table has one row per mode and one per failure; --json prints every comparison. Tolerances are the same
    on every device: on CUDA neither matrices nor attention use TF32.
    """
    from edgeflow.lab.verify.checkpoint import shown, verify_checkpoint

    if weights not in ("float", "fp8"):
        raise ConfigError(f"weights: must be float or fp8, got {weights!r}")
    if device not in ("cpu", "cuda", "auto"):
        raise ConfigError(f"device: must be cpu, cuda or auto, got {device!r}")
    with reporting(Console(stderr=True)) as report:
        modes = [mode] if mode else []
        results = verify_checkpoint(
            directory,
            modes,
            report,
            kv=kv,
            weights=weights,
            overlay=operators,
            device=device,
            family=family,
            artifact=artifact,
        )
    off = sum(not result.ok for _, result in results)
    if as_json:
        rows = [
            asdict(result)
            | {
                "mode": each,
                "ok": result.ok,
                "deviation": result.deviation if isfinite(result.deviation) else None,
                "tolerance": result.tolerance if isfinite(result.tolerance) else None,
            }
            for each, result in results
        ]
        print(json.dumps(rows, indent=2))
    else:
        title = escape(f"verify {directory}")
        table = FoldingTable("mode", "case", "quantity", "largest\ndeviation", "tolerance", "", title=title)
        for each, result in shown(directory, results):
            verdict = "[green]ok[/]" if result.ok else "[red]off[/]"
            numbers = f"{result.deviation:.3g}", f"{result.tolerance:.3g}"
            table.add_row(each, escape(result.case), result.quantity, *numbers, verdict)
        table_console().print(table)
        print(f"{off} of {len(results)} comparisons are off" if off else f"all {len(results)} comparisons agree")
    raise typer.Exit(1 if off else 0)


def policy_check(
    model: Annotated[str, typer.Argument(help="Checkpoint directory, hub id, or an embedded policy: demo, demo-flow.")],
    given: Settings = [],  # noqa: B006 - typer reads it
    most_ms: Annotated[
        OptionalFloat, number("Most milliseconds per answer; default: the time that its actions cover.", 0.01)
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that a policy keeps the rules of a family.

    The checkpoint is loaded three times, as the worker loads it, and answers about 100 made-up frames, which takes a
    few seconds for a small model.

    Exits with code 1 if a check fails. `skipped` is a check that does not apply to the policy, or that another failure
    makes meaningless.
    """
    from edgeflow.config.service import load_config
    from edgeflow.lab.conformance.kit import check_policy
    from edgeflow.lab.conformance.verdicts import VerdictKind

    config = load_config(None, overrides_of(given, {"model": model}))
    with reporting(Console(stderr=True)) as report:
        verdicts = check_policy(config, most_ms, report)
    failed = sum(verdict.failed for verdict in verdicts)
    if as_json:
        print(json.dumps([asdict(verdict) for verdict in verdicts], indent=2))
    else:
        colours = {VerdictKind.OK: "green", VerdictKind.FAILED: "red", VerdictKind.SKIPPED: "dim"}
        table = FoldingTable("check", "", "found", "what to do", title=escape(f"policy check {model}"))
        for verdict in verdicts:
            outcome = f"[{colours[verdict.outcome]}]{verdict.outcome.value}[/]"
            table.add_row(verdict.name, outcome, escape(verdict.found), escape(verdict.advice))
        table_console().print(table)
        print(f"{failed} of {len(verdicts)} checks failed" if failed else "no check failed")
    raise typer.Exit(1 if failed else 0)


def ops(
    model: Annotated[str, typer.Option(help=TUNED)] = "demo",
    hardware: Annotated[
        str, typer.Option(help="cpu, cuda, or an architecture such as cuda_sm87; default: this machine's.")
    ] = "",
    dtype: Annotated[str, typer.Option(help=DTYPE)] = "",
    rows: Annotated[int, number("Rows per prefill.", 1)] = 280,
    overlay: Annotated[
        OptionalPath, typer.Option(metavar="FILE", help="JSON file of choices that override the built-in ones.")
    ] = None,
    weights: Annotated[str, typer.Option(help=WEIGHTS)] = "float",
    head: Annotated[str, typer.Option(help=HEAD)] = "float",
    as_json: Json = False,
) -> None:
    """Show which implementation runs each operator, and why."""
    from edgeflow.lab.tuning.command import ops_command

    ops_command(model, hardware, dtype, rows=rows, overlay=overlay, weights=weights, head=head, as_json=as_json)


def tune(
    model: Annotated[str, typer.Option(help=TUNED)] = "demo",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help=DTYPE)] = "",
    rows: Annotated[int, number("Rows per prefill.", 1)] = 280,
    out: Annotated[
        OptionalPath, typer.Option(metavar="FILE", help="Overlay file to write; an interrupted run resumes from it.")
    ] = None,
    samples: Annotated[int, number("Timings per candidate; the median counts.", 1)] = 15,
    weights: Annotated[str, typer.Option(help=WEIGHTS)] = "float",
    head: Annotated[str, typer.Option(help=HEAD)] = "float",
    threads: Annotated[
        int, number("CPU threads, as `threads` in the configuration; with --regress those of the file.", 1, 1024)
    ] = 1,
    regress: Annotated[
        bool, typer.Option("--regress", help="Check that an existing overlay is still correct and not slower.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find the fastest correct implementation of each operator.

    Measures on this machine and writes an overlay. The embedded policy takes about a minute, other models take longer;
    an interrupted run resumes. For policies that denoise chunks, only the projections are tuned.
    """
    from edgeflow.lab.tuning.command import tune_command

    code = tune_command(
        model,
        device,
        dtype,
        rows=rows,
        out=out,
        samples=samples,
        again=regress,
        weights=weights,
        head=head,
        threads=threads,
        as_json=as_json,
    )
    raise typer.Exit(code)
