"""Commands that convert a checkpoint: to 4 bits, to static graphs for other engines, and to an accelerator's times."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from edgeflow.commands.options import Json, OptionalInt, OptionalPath, OptionalText, number
from edgeflow_client.errors import ConfigError

GROUP_HELP = "Inputs that share a scale and a zero: 32, 64 or 128; default: 64, or 32 if 64 does not divide every size."
SCALES_HELP = "Formula of the scales: duo (inputs and weights, AutoAWQ's default) or x (only inputs, as in the paper)."
LAYOUT_HELP = "autoawq: only the checkpoint; awq-macro: also the accelerator's macro file."
CALIBRATION_HELP = (
    "built-in; for a chat model also written (texts that the model writes, for base models) or a UTF-8 text file whose "
    "paragraphs are the samples; for a policy also closed-loop (the demo's robot) or a file of recorded frames."
)
LOSS_HELP = "For a policy with action tokens: the rows that count in the loss, all or actions; default: all."
PRECISION_HELP = "Weights and activations: float32, int16, w8a16 (8-bit weights, 16-bit activations) or w8a8."
REWRITE_HELP = "Substitute operators: erf-gelu, rope-concat or finite-mask. Repeatable."
TEXT_HELP = (
    "Prompt lengths in tokens, one graph for each; for a chat model, rows per chunk. Default: the checkpoint's limit "
    "if it states one, otherwise 64. Repeatable."
)
BATCH_HELP = (
    "Sequences per step, one graph for each. Default: one, and as many as a pipelined robot needs; for a chat model "
    "one. Repeatable."
)
FRAMES_HELP = "File of recorded frames to calibrate on (edgeflow quantize --keep-frames writes one)."

PrecisionName = Literal["float32", "int16", "w8a16", "w8a8"]


class RewriteName(str, Enum):
    """The substitutions of lab/export/graphs/rewrites.py."""

    ERF_GELU = "erf-gelu"
    ROPE_CONCAT = "rope-concat"
    FINITE_MASK = "finite-mask"


def quantize(
    model: Annotated[
        str,
        typer.Argument(help="Checkpoint directory of a chat model or policy, hub id, demo-chat, demo or demo-flow."),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write; an interrupted run resumes from it.")],
    group: Annotated[OptionalInt, typer.Option(metavar="N", help=GROUP_HELP)] = None,
    scales: Annotated[Literal["duo", "x"], typer.Option(metavar="NAME", help=SCALES_HELP)] = "duo",
    no_identity: Annotated[
        bool, typer.Option("--no-identity", help="Do not try s = 1 (nothing scaled), like AutoAWQ.")
    ] = False,
    no_clip: Annotated[bool, typer.Option("--no-clip", help="Do not search how far to clamp weights.")] = False,
    calibration: Annotated[str, typer.Option(metavar="NAME", help=CALIBRATION_HELP)] = "built-in",
    seed: Annotated[int, number("Seed of the calibration samples.", 0)] = 0,
    questions: Annotated[OptionalInt, number("Held-out questions to grade demo-chat on; default: 100.", 1)] = None,
    loss: Annotated[Optional[Literal["all", "actions"]], typer.Option(metavar="NAME", help=LOSS_HELP)] = None,  # noqa: UP045 - typer
    keep_frames: Annotated[
        OptionalPath, typer.Option(metavar="FILE", help="File to write a policy's frames to, for --calibration.")
    ] = None,
    layout: Annotated[Literal["autoawq", "awq-macro"], typer.Option(metavar="NAME", help=LAYOUT_HELP)] = "autoawq",
    as_json: Json = False,
) -> None:
    """Quantise a chat model or a policy to 4 bits (AWQ).

    Runs on the CPU. demo-chat takes one to two minutes on 2 cores; other models take longer in proportion to their
    weights.

    Writes a checkpoint in AutoAWQ's layout (GEMM), and a report that compares its error with that of rounding to
    nearest. Chat models: Llama, Qwen2, Qwen2.5, Qwen3, Qwen2.5-VL. Policies: OpenVLA, SmolVLA, π0 and π0.5; only the
    language model is quantised, vision towers, projectors and action experts stay floats.
    """
    from edgeflow.kernels.awq import GROUPS
    from edgeflow.lab.quantize.command import quantize_command
    from edgeflow.lab.quantize.request import Request
    from edgeflow.lab.quantize.search.scales import ScaleForm
    from edgeflow.model_paths import resolve_model

    if group is not None and group not in GROUPS:
        raise ConfigError(f"group: must be one of {', '.join(map(str, GROUPS))}, got {group}")
    request = Request(
        folder=resolve_model(model, chat=True),
        out=out,
        group=group,
        form=ScaleForm(scales),
        identity=not no_identity,
        clip=not no_clip,
        calibration=calibration,
        seed=seed,
    )
    quantize_command(
        model, request, questions=questions, loss=loss, keep_frames=keep_frames, layout=layout, as_json=as_json
    )


def export(
    model: Annotated[
        str,
        typer.Argument(help="Checkpoint directory of a policy or chat model, hub id, demo, demo-flow or demo-chat."),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write; an artifact in it is replaced.")],
    text: Annotated[Optional[list[int]], typer.Option(metavar="N", help=TEXT_HELP)] = None,  # noqa: UP045 - typer
    batch: Annotated[Optional[list[int]], typer.Option(metavar="N", help=BATCH_HELP)] = None,  # noqa: UP045 - typer
    positions: Annotated[
        OptionalInt, typer.Option(metavar="N", help="Positions per slot of a chat model; default: 2048.")
    ] = None,
    precision: Annotated[PrecisionName, typer.Option(metavar="NAME", help=PRECISION_HELP)] = "float32",
    prefill: Annotated[
        Optional[PrecisionName], typer.Option(metavar="NAME", help="Precision of the prefill; default: --precision.")  # noqa: UP045
    ] = None,
    step: Annotated[
        Optional[PrecisionName], typer.Option(metavar="NAME", help="Precision of the step; default: --precision.")  # noqa: UP045
    ] = None,
    rewrite: Annotated[Optional[list[RewriteName]], typer.Option(metavar="NAME", help=REWRITE_HELP)] = None,  # noqa: UP045 - typer
    frames: Annotated[OptionalPath, typer.Option(metavar="FILE", help=FRAMES_HELP)] = None,
    first_step: Annotated[
        bool, typer.Option("--first-step", help="Calibrate only on the first denoising step, for comparisons.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Export a model as ONNX graphs of fixed shapes.

    Writes vision towers, prefill and one step, with explicit KV inputs and outputs and only standard operators of
    opset 21. demo-flow takes about half a minute on 2 cores, larger models take longer. Policies: OpenVLA, SmolVLA, π0
    and π0.5; chat models: Llama, Qwen2, Qwen2.5 and Qwen3.

    ONNX Runtime serves the graphs: a policy's with `edgeflow serve --model FOLDER`, a chat model's with `chat.model` in
    the configuration.
    """
    from edgeflow.artifacts.manifest import StageName
    from edgeflow.lab.export.graphs.shapes import ExportShapes
    from edgeflow.lab.export.request import ExportRequest, Precision
    from edgeflow.lab.export.run import export_command
    from edgeflow.model_paths import resolve_model

    shapes = ExportShapes(text=tuple(text or ()), batches=tuple(batch or ()), positions=positions)
    chosen = {StageName.TOWERS: precision, StageName.PREFILL: prefill or precision, StageName.STEP: step or precision}
    request = ExportRequest(
        folder=resolve_model(model, chat=True),
        out=out,
        shapes=shapes,
        precisions={stage: Precision(name) for stage, name in chosen.items()},
        rewrites=tuple(dict.fromkeys(each.value for each in rewrite or ())),
        frames=frames,
        first_step=first_step,
    )
    export_command(model, request, as_json=as_json)


def cosim(
    model: Annotated[
        str, typer.Argument(help="Checkpoint directory, or qwen2.5-0.5b: the paper's model, without weights.")
    ],
    group: Annotated[
        OptionalInt,
        typer.Option(
            metavar="N", help="Inputs per group of 4-bit weights: 32, 64 or 128; default: the checkpoint's, else 64."
        ),
    ] = None,
    prompt: Annotated[
        OptionalText, typer.Option(help="Also run this prompt, on the simulated accelerator and on the reference.")
    ] = None,
    tokens: Annotated[int, number("Tokens to generate for --prompt, up to 4096.", 1, 4096)] = 16,
    macros: Annotated[
        OptionalPath,
        typer.Option(
            metavar="FOLDER",
            help="Folder written by `edgeflow quantize --layout awq-macro`: --prompt runs with its weights.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Estimate the speed of a model on the KV260 accelerator.

    Prints the time of each operation beside the paper's, and tokens per second. With --prompt, the linear layers are
    computed bit for bit as on the accelerator and everything else on the CPU; exits with code 1 if the greedy tokens
    differ from those of the W4A16 reference in float32.

    Models that do not fit into the board's 4 GB of memory are rejected, and linears with more than 8192 inputs.
    """
    from edgeflow.lab.kv260.command import cosim_command

    code = cosim_command(model, group=group, macros=macros, prompt=prompt, tokens=tokens, as_json=as_json)
    raise typer.Exit(code)
