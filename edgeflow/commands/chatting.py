"""Commands of the chat plane."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from edgeflow.commands.options import OptionalFloat, OptionalPath, OptionalText
from edgeflow_client.errors import CheckpointError, ConfigError


def chat(
    model: Annotated[
        str, typer.Option(help="Checkpoint directory, hub id, demo-chat (embedded model) or demo-logs.")
    ] = "demo-chat",
    system: Annotated[str, typer.Option(help="System message.")] = "",
    system_file: Annotated[
        OptionalPath, typer.Option(help="Text file with the system message, such as a log to ask about.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    capacity: Annotated[
        int,
        typer.Option(min=16, help="Most tokens in the whole conversation; with a gate, most that are held at once."),
    ] = 2048,
    gate: Annotated[
        OptionalText,
        typer.Option(help="gate.json of the model, or its folder, for conversations beyond the capacity."),
    ] = None,
    draft: Annotated[
        str, typer.Option(help="none, lookup, eagle3 or auto: guess tokens, and verify several in one pass.")
    ] = "none",
    eagle3: Annotated[OptionalText, typer.Option(help="Directory or hub id of the model's EAGLE-3 head.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens in an answer.")] = 256,
    temperature: Annotated[
        OptionalFloat,
        typer.Option(min=0, max=2, help="Sampling temperature, 0 = greedy; default: the checkpoint's own."),
    ] = None,
) -> None:
    """Chat with a model in the terminal; Ctrl-D ends the conversation."""
    from edgeflow.config.service import load_config
    from edgeflow.engine.chat.terminal import converse, open_conversation, read_text

    if system_file is not None:
        if system:
            raise ConfigError("system_file: give --system or --system-file, not both")
        system = read_text(system_file, "system_file")
    settings = {
        "model": model,
        "capacity": capacity,
        "long.gate": gate,
        "draft": draft,
        "eagle3.model": eagle3,
        "max_tokens": max_tokens,
    }
    config = load_config(None, {f"chat.{name}": value for name, value in settings.items()})
    path = config.chat_path
    if path is None:
        raise CheckpointError("model: the embedded chat model is not installed: give a checkpoint with --model")
    console = Console(stderr=True)
    with console.status("loading"):
        conversation = open_conversation(config.chat, path, device, temperature, system)
    for remark in conversation.remarks:
        console.print(remark, style="yellow", highlight=False)
    prompt = "> " if sys.stdin.isatty() else ""
    converse(conversation, lambda: input(prompt), lambda text: print(text, end="", flush=True))
