"""Commands of the chat plane."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from edgeflow.commands.options import Json, OptionalFloat, OptionalPath
from edgeflow.errors import CheckpointError


def chat(
    model: Annotated[
        str, typer.Option(help="Checkpoint directory, hub id, or demo-chat (embedded model).")
    ] = "demo-chat",
    system: Annotated[str, typer.Option(help="System message.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    capacity: Annotated[int, typer.Option(min=16, help="Most tokens in the whole conversation.")] = 2048,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens in an answer.")] = 256,
    temperature: Annotated[
        OptionalFloat,
        typer.Option(min=0, max=2, help="Sampling temperature, 0 = greedy; default: the checkpoint's own."),
    ] = None,
) -> None:
    """Chat with a model in the terminal; Ctrl-D ends the conversation."""
    from edgeflow.config import load_config
    from edgeflow.engine.chat.terminal import converse, open_conversation

    path = load_config(None, {"chat.model": model}).chat_path
    if path is None:
        raise CheckpointError("model: the embedded chat model is not installed: give a checkpoint with --model")
    with Console(stderr=True).status("loading"):
        conversation = open_conversation(
            path, device, capacity=capacity, max_tokens=max_tokens, temperature=temperature, system=system
        )
    prompt = "> " if sys.stdin.isatty() else ""
    converse(conversation, lambda: input(prompt), lambda text: print(text, end="", flush=True))


def eval_chat(
    model: Annotated[OptionalPath, typer.Option(help="Checkpoint directory; default: the embedded chat model.")] = None,
    questions: Annotated[int, typer.Option(min=1, help="Number of held-out questions.")] = 500,
    seed: Annotated[str, typer.Option(help="Seed of the questions.")] = "held out",
    as_json: Json = False,
) -> None:
    """Measure the exact match of a chat model on held-out questions.

    Exits with code 1 below the threshold for shipping.
    """
    from edgeflow.demo.chat.command import eval_chat_command

    raise typer.Exit(eval_chat_command(model, questions, seed, as_json=as_json))
