"""Commands that compare a checkpoint with recordings, and operators with each other."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from edgeflow.commands.options import Json, OptionalMode, OptionalPath
from edgeflow.contract import KVName
from edgeflow.lab.progress import reporting
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.terminal import FoldingTable, table_console

WEIGHTS = "Precision of the weight matrices: float, int8 (CPU) or fp8 (CUDA)."
HEAD = "Format of a chat model's head, as chat.head of the configuration: float or int8 (CPU)."
TUNED = "Checkpoint directory, hub id, demo, demo-flow, demo-chat, or a published shape; a wrong name lists them."
DTYPE = "float32, float16 or bfloat16; default: the one that the service takes for the model on that device."
VERIFIED_HELP = (
    "serial, pipelined or speculative; depth: every depth between serial and pipelined; auto: every pace that auto may "
    "choose. A family has some of them."
)


def verify(
    directory: Annotated[Path, typer.Argument(help="Directory of a checkpoint with recorded cases.")],
    mode: Annotated[OptionalMode, typer.Option(metavar="MODE", help=VERIFIED_HELP)] = None,
    kv: Annotated[
        KVName,
        typer.Option(
            help="model; or int8, fp8, int4: measure the error and the memory of that KV format. Bounds have room for "
            "random weights: ok means that nothing is broken, not that a model is as good as before."
        ),
    ] = "model",
    weights: Annotated[
        str, typer.Option(help="float, or fp8: measure the error of FP8 weights and activations, on any CPU.")
    ] = "float",
    operators: Annotated[OptionalPath, typer.Option(help="Operator overlay for a control policy.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "cpu",
    family: Annotated[str, typer.Option(help="Family of a policy; default: as the bundle says.")] = "",
    artifact: Annotated[
        OptionalPath,
        typer.Option(
            help="Folder that `edgeflow export` wrote of this bundle: its graphs are checked. Those of other "
            "precisions than float32, or with substituted operators, have no bound."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare a checkpoint's outputs with recordings of the original implementation, in float32.

    Takes a few serial and pipelined decodings of each recorded case, after the weights are loaded: seconds for a small
    model, minutes for one of 7B on a CPU.

    Exits with code 1 if any differs by more than its tolerance. Default modes: serial, pipelined and, where tokens are
    drafted, speculative; chat models are checked in their own modes. The table of a memory gate's or an EAGLE-3 head's
    bundle has a row for each mode, and those that are off; --json has all. Tolerances are the same on every device: on
    CUDA neither matrices nor attention use TF32.
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


def ops(
    model: Annotated[str, typer.Option(help=TUNED)] = "demo",
    hardware: Annotated[
        str, typer.Option(help="cpu, cuda, or an architecture such as cuda_sm87; default: this machine.")
    ] = "",
    dtype: Annotated[str, typer.Option(help=DTYPE)] = "",
    rows: Annotated[int, typer.Option(min=1, help="Rows per prefill.")] = 280,
    overlay: Annotated[OptionalPath, typer.Option(help="JSON file of choices that override the built-in ones.")] = None,
    weights: Annotated[str, typer.Option(help=WEIGHTS)] = "float",
    head: Annotated[str, typer.Option(help=HEAD)] = "float",
    as_json: Json = False,
) -> None:
    """Show which implementation runs each operator of a model on a device, and why."""
    from edgeflow.lab.tuning.command import ops_command

    ops_command(model, hardware, dtype, rows=rows, overlay=overlay, weights=weights, head=head, as_json=as_json)


def tune(
    model: Annotated[str, typer.Option(help=TUNED)] = "demo",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help=DTYPE)] = "",
    rows: Annotated[int, typer.Option(min=1, help="Rows per prefill.")] = 280,
    out: Annotated[
        OptionalPath, typer.Option(help="Overlay file to write; an interrupted run resumes from it.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Timings per candidate; the median counts.")] = 15,
    weights: Annotated[str, typer.Option(help=WEIGHTS)] = "float",
    head: Annotated[str, typer.Option(help=HEAD)] = "float",
    regress: Annotated[
        bool, typer.Option("--regress", help="Check an existing overlay: still correct, and not slower.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find the fastest correct implementation of each operator on this machine and write an overlay.

    The embedded policy takes about a minute on 2 cores, other models longer; a run that was stopped goes on.

    Of policies that denoise chunks the projections are tuned, and nothing else.
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
        as_json=as_json,
    )
    raise typer.Exit(code)
