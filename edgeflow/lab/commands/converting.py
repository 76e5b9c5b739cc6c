"""Commands that convert a checkpoint: to 4 bits, to static graphs for other engines, and to an accelerator's times."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from edgeflow.commands.options import Json, OptionalInt, OptionalPath, OptionalText
from edgeflow_client.errors import ConfigError

GROUP_HELP = "Inputs that share a scale and a zero: 32, 64 or 128; default: the larger of 64 and 32 that divides all."
SCALES_HELP = "Formula of the scales: duo (inputs and weights, AutoAWQ's default) or x (inputs alone, the paper's)."
LAYOUT_HELP = "autoawq: the checkpoint; awq-macro: the macro file of the accelerator beside it."
CALIBRATION_HELP = (
    "built-in; of a chat model also written (texts that it writes itself, for base models), or a UTF-8 text file whose "
    "paragraphs are the samples; of a policy also closed-loop (the demo's robot), or a file of recorded frames."
)
LOSS_HELP = "Of a policy with action tokens: the rows whose outputs losses count, all or actions; default: all."
PRECISION_HELP = "Weights and activations: float32, int16, w8a16 (8-bit weights, 16-bit activations) or w8a8."
REWRITE_HELP = "Substitute operators: erf-gelu, rope-concat or finite-mask; may be given several times."
TEXT_HELP = (
    "Tokens of a prompt, a bucket each; of a chat model, rows of a chunk. Default: the limit of the "
    "checkpoint where it states one, otherwise 64."
)
BATCH_HELP = "Sequences of a step, a graph each. Default: one, and all of a pipelined robot; one of a chat model."
FRAMES_HELP = "File of recorded frames to calibrate on (edgeflow quantize --keep-frames writes one)."

PrecisionName = Literal["float32", "int16", "w8a16", "w8a8"]


class RewriteName(str, Enum):
    """The substitutions, as in lab/export/graphs/rewrites.py."""

    ERF_GELU = "erf-gelu"
    ROPE_CONCAT = "rope-concat"
    FINITE_MASK = "finite-mask"


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
        identity=identity,
        clip=clip,
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
    out: Annotated[Path, typer.Option(help="Folder to write; an artifact in it is replaced.")],
    text: Annotated[Optional[list[int]], typer.Option(help=TEXT_HELP)] = None,  # noqa: UP045 - typer
    batch: Annotated[Optional[list[int]], typer.Option(help=BATCH_HELP)] = None,  # noqa: UP045 - typer
    positions: Annotated[OptionalInt, typer.Option(help="Positions of a chat model's slot; default: 2048.")] = None,
    precision: Annotated[PrecisionName, typer.Option(help=PRECISION_HELP)] = "float32",
    prefill: Annotated[
        Optional[PrecisionName], typer.Option(help="Precision of the prefill, where it is another.")  # noqa: UP045
    ] = None,
    step: Annotated[
        Optional[PrecisionName], typer.Option(help="Precision of the step, where it is another.")  # noqa: UP045
    ] = None,
    rewrite: Annotated[Optional[list[RewriteName]], typer.Option(help=REWRITE_HELP)] = None,  # noqa: UP045 - typer
    frames: Annotated[OptionalPath, typer.Option(help=FRAMES_HELP)] = None,
    first_step: Annotated[
        bool, typer.Option("--first-step", help="Calibrate only on the first denoising step, for comparisons.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Export a model as static ONNX graphs: towers, prefill and one step, with explicit KV inputs and outputs.

    demo-flow takes about half a minute on 2 cores, larger models longer. Shapes are fixed, operators are standard ones
    of opset 21. Policies: OpenVLA, SmolVLA, π0 and π0.5; chat models: Llama, Qwen2, Qwen2.5 and Qwen3.
    `edgeflow serve --model FOLDER` serves a policy's graphs by ONNX Runtime,
    `chat.model` of a configuration those of a chat model.
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
    model: Annotated[str, typer.Argument(help="Checkpoint directory, or qwen2.5-0.5b: the paper's, without weights.")],
    group: Annotated[
        OptionalInt,
        typer.Option(help="Inputs per group of 4-bit weights: 32, 64, 128; default: the checkpoint's, else 64."),
    ] = None,
    prompt: Annotated[
        OptionalText, typer.Option(help="Also run the accelerator's model on this prompt, and the reference.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, max=4096, help="Tokens to generate for --prompt.")] = 16,
    macros: Annotated[
        OptionalPath,
        typer.Option(
            help="Directory that `edgeflow quantize --layout awq-macro` wrote: the run takes its weights, for --prompt."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Estimate a model on the KV260 accelerator: time of each operation beside the paper's, tokens per second.

    With --prompt the linears of the layers are computed as on the accelerator, to the last bit, and everything else
    on the CPU. Exits with code 1 if its greedy tokens differ from the W4A16 reference's in float32.

    Rejected are models that the board's 4 GB of memory cannot hold, and linears with more than 8192 inputs.
    """
    from edgeflow.lab.kv260.command import cosim_command

    code = cosim_command(model, group=group, macros=macros, prompt=prompt, tokens=tokens, as_json=as_json)
    raise typer.Exit(code)
