"""`edgeflow export`: a checkpoint as static graphs for other engines."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from edgeflow.commands.options import Json, OptionalInt, OptionalPath

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
    """The substitutions, as of lab/export/graphs/rewrites.py."""

    ERF_GELU = "erf-gelu"
    ROPE_CONCAT = "rope-concat"
    FINITE_MASK = "finite-mask"


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
        bool, typer.Option("--first-step", help="Calibrate on the first denoising step alone, for comparisons.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Export a model as static ONNX graphs: towers, prefill and one step, with explicit KV inputs and outputs.

    demo-flow takes about half a minute on 2 cores, larger models longer. Shapes are fixed, operators are standard ones
    of opset 21. Policies: OpenVLA, SmolVLA, π0 and π0.5; chat models: Llama, Qwen2, Qwen2.5 and Qwen3.
    `edgeflow serve --model FOLDER` serves a policy's graphs by ONNX Runtime,
    `chat.model` of a configuration those of a chat model.
    """
    from edgeflow.lab.export.command import export_command, request_of
    from edgeflow.lab.export.graphs.shapes import ExportShapes

    shapes = ExportShapes(text=tuple(text or ()), batches=tuple(batch or ()), positions=positions)
    request = request_of(
        model,
        out,
        shapes,
        precision=precision,
        prefill=prefill,
        step=step,
        rewrites=tuple(dict.fromkeys(each.value for each in rewrite or ())),
        frames=frames,
        first_step=first_step,
    )
    export_command(model, request, as_json=as_json)
