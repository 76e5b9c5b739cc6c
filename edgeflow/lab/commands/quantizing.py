"""`edgeflow quantize`: a checkpoint in 4 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from edgeflow.commands.options import Json, OptionalInt, OptionalPath

GROUP_HELP = "Inputs that share a scale and a zero: 32, 64 or 128; default: the larger of 64 and 32 that divides all."
SCALES_HELP = "Formula of the scales: duo (inputs and weights, AutoAWQ's default) or x (inputs alone, the paper's)."
LAYOUT_HELP = "autoawq: the checkpoint; awq-macro: the macro file of the accelerator beside it."
CALIBRATION_HELP = (
    "built-in; of a chat model also written (texts that it writes itself, for base models), or a UTF-8 text file whose "
    "paragraphs are the samples; of a policy also closed-loop (the demo's robot), or a file of recorded frames."
)
LOSS_HELP = "Of a policy with action tokens: the rows whose outputs losses count, all or actions; default: all."


def quantize(
    model: Annotated[
        str,
        typer.Argument(help="Checkpoint directory of a chat model or policy, hub id, demo-chat, demo or demo-flow."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; a run that was stopped goes on in it.")],
    group: Annotated[OptionalInt, typer.Option(help=GROUP_HELP)] = None,
    scales: Annotated[Literal["duo", "x"], typer.Option(help=SCALES_HELP)] = "duo",
    identity: Annotated[
        bool, typer.Option("--identity/--no-identity", help="Try s = 1 (nothing scaled) as well; AutoAWQ does not.")
    ] = True,
    clip: Annotated[bool, typer.Option("--clip/--no-clip", help="Search how far weights are clamped.")] = True,
    calibration: Annotated[str, typer.Option(help=CALIBRATION_HELP)] = "built-in",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the calibration samples.")] = 0,
    questions: Annotated[
        OptionalInt, typer.Option(min=1, help="Held-out questions that demo-chat is graded on; default: 100.")
    ] = None,
    loss: Annotated[Optional[Literal["all", "actions"]], typer.Option(help=LOSS_HELP)] = None,  # noqa: UP045 - typer
    keep_frames: Annotated[
        OptionalPath, typer.Option(help="File to write a policy's frames to, for --calibration.")
    ] = None,
    layout: Annotated[Literal["autoawq", "awq-macro"], typer.Option(help=LAYOUT_HELP)] = "autoawq",
    as_json: Json = False,
) -> None:
    """Quantise a chat model or a policy to 4 bits by the AWQ search, on the CPU.

    demo-chat takes one to two minutes on 2 cores; other models take longer in proportion to their weights.

    Writes a checkpoint in AutoAWQ's layout (GEMM), and a report of its error beside that of round to nearest. Chat
    models: Llama, Qwen2, Qwen2.5, Qwen3, Qwen2.5-VL. Policies: OpenVLA, SmolVLA, π0 and π0.5, of which the language
    model is quantised. Vision towers, projectors and action experts stay floats.
    """
    from edgeflow.lab.quantize.command import Options, quantize_command

    options = Options(
        model=model,
        out=out,
        group=group,
        scales=scales,
        identity=identity,
        clip=clip,
        calibration=calibration,
        seed=seed,
        questions=questions,
        loss=loss,
        keep_frames=keep_frames,
        layout=layout,
    )
    quantize_command(options, as_json=as_json)
