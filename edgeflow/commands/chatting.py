"""Commands of the chat plane."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from edgeflow.commands.options import ChosenKV, Json, OptionalFloat, OptionalPath, OptionalText
from edgeflow.errors import CheckpointError, ConfigError


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
    from edgeflow.config import load_config
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


def eval_chat(
    model: Annotated[str, typer.Option(help="Checkpoint directory, hub id, demo-chat or demo-logs.")] = "demo-chat",
    questions: Annotated[int, typer.Option(min=1, help="Number of held-out questions.")] = 500,
    seed: Annotated[str, typer.Option(help="Seed of the questions.")] = "held out",
    kv: ChosenKV = "model",
    lookup: Annotated[bool, typer.Option("--lookup", help="Answer with drafts by prompt look-up.")] = False,
    as_json: Json = False,
) -> None:
    """Measure the exact match of a chat model on held-out questions.

    The 500 questions of the default take demo-chat one to three minutes on 2 cores, and its 4-bit checkpoint longer.
    Exits with code 1 below the threshold for shipping.
    """
    from edgeflow.lab.demo.chat.command import eval_chat_command

    raise typer.Exit(eval_chat_command(model, questions, seed, kv=kv, lookup=lookup, as_json=as_json))


def eval_logs(
    model: Annotated[str, typer.Option(help="Checkpoint directory, hub id, demo-logs or demo-chat.")] = "demo-logs",
    questions: Annotated[int, typer.Option(min=1, help="Number of held-out questions.")] = 512,
    seed: Annotated[str, typer.Option(help="Seed of the logs and questions.")] = "0",
    longest: Annotated[int, typer.Option(min=256, help="Most tokens of a prompt, up to 2040.")] = 2040,
    as_json: Json = False,
) -> None:
    """Measure the exact match of a chat model on questions about logs of robot states.

    Exits with code 1 below the threshold for shipping.
    """
    from edgeflow.lab.demo.chat.logs.command import eval_logs_command

    raise typer.Exit(eval_logs_command(model, questions, seed, longest, as_json=as_json))


def draw_logs(
    out: Annotated[Path, typer.Argument(help="JSONL file to write.")],
    conversations: Annotated[int, typer.Option(min=1, help="Number of conversations.")] = 2000,
    turns: Annotated[int, typer.Option(min=1, help="Questions of each.")] = 6,
    segments: Annotated[int, typer.Option(min=1, help="Most segments that are folded.")] = 6,
    sink: Annotated[int, typer.Option(min=0, help="First tokens that are kept.")] = 32,
    window: Annotated[int, typer.Option(min=1, help="Newest tokens that are not folded yet.")] = 96,
    segment: Annotated[int, typer.Option(min=1, help="Tokens that are folded into memory together.")] = 256,
    seed: Annotated[int, typer.Option(help="Seed of the logs and questions.")] = 0,
    as_json: Json = False,
) -> None:
    """Write conversations about long logs of robot states for train-gate; the answers lie in the compressed part.

    train-gate needs the same --sink, --window and --segment, which are not its defaults; they are printed at the end.
    """
    from edgeflow.lab.demo.chat.logs.command import draw_logs_command
    from edgeflow.lab.demo.chat.logs.long import LongLogs
    from edgeflow.models.memory_gate.files import GateRules

    rules = GateRules(sink=sink, window=window, segment=segment)
    source = LongLogs(rules=rules, most_segments=segments, turns=turns)
    draw_logs_command(out, source, conversations, seed, as_json=as_json)
