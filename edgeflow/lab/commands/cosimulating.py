"""Commands of the accelerator."""

from __future__ import annotations

from typing import Annotated

import typer

from edgeflow.commands.options import Json, OptionalInt, OptionalPath, OptionalText


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

    Refused are models that the board's 4 GB of memory cannot hold, and linears with more than 8192 inputs.
    """
    from edgeflow.lab.kv260.command import cosim_command

    code = cosim_command(model, group=group, macros=macros, prompt=prompt, tokens=tokens, as_json=as_json)
    raise typer.Exit(code)
