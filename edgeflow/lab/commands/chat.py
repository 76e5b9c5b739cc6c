"""Commands about the embedded chat models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgeflow.commands.options import Json
from edgeflow.lab.commands.options import ChosenKV


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
    from edgeflow.lab.demo.chat.evaluate import eval_chat_command

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
    from edgeflow.models.memory_gate import GateRules

    rules = GateRules(sink=sink, window=window, segment=segment)
    source = LongLogs(rules=rules, most_segments=segments, turns=turns)
    draw_logs_command(out, source, conversations, seed, as_json=as_json)
