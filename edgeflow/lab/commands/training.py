"""Commands about the embedded models, which they train and evaluate, and about memory gates of chat models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from edgeflow.commands.options import MODE_HELP, Json, OptionalFloat, OptionalInt, OptionalText, number
from edgeflow.config.devices import PROFILE_HELP
from edgeflow.contract import Speculation
from edgeflow.lab.commands.options import (
    DEPTH_HELP,
    EMBEDDED_POLICIES,
    PASSES_HELP,
    TOLERANCE_HELP,
    ChosenKV,
    Device,
    Embedded,
)
from edgeflow.policies.settings import MOST_SEED
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import MOST_TOLERANCE_BINS, Execution, Mode

EXECUTION_HELP = (
    "How answers are executed. continue: each chunk continues the one in execution; fresh: each starts anew; rest: the "
    "robot stands still while it waits; slow: at 75 % of the rate; auto: what the service would choose. Repeatable."
)


def eval_demo(
    episodes: Annotated[int, number("Episodes per condition and seed.", 1)] = 200,
    mode: Annotated[list[Mode], typer.Option(metavar="MODE", help=f"{MODE_HELP} Repeatable.")] = [Mode.AUTO],  # noqa: B006 - typer reads it
    depth: Annotated[int, number(DEPTH_HELP, 0)] = 0,
    tolerance_bins: Annotated[int, number(TOLERANCE_HELP, 0, MOST_TOLERANCE_BINS)] = 0,
    max_passes: Annotated[int, number(PASSES_HELP, 0)] = 0,
    anchored: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="yes: apply actions to the pose in their frame; no: to the current pose; or both."
        ),
    ] = "yes",
    speed: Annotated[list[float], typer.Option(metavar="N", help="Speed of the objects in cm/s. Repeatable.")] = [0.0],  # noqa: B006
    jump: Annotated[
        float, number("How far the target jumps once at a random time, in cm, up to 5; 0: not at all.", 0, 5)
    ] = 0.0,
    profile: Annotated[list[str], typer.Option(metavar="NAME", help=f"{PROFILE_HELP} Repeatable.")] = ["none"],  # noqa: B006
    seeds: Annotated[int, number("Number of disjoint sets of episodes.", 1)] = 1,
    frame_hz: Annotated[float, number("Camera frames per second, up to 100.", 1, 100)] = 20.0,
    model: Annotated[str, typer.Option(help="Checkpoint directory; default: an embedded policy.")] = "",
    policy: Embedded = "tokens",
    kv: ChosenKV = "model",
    execution: Annotated[list[Execution], typer.Option(metavar="NAME", help=EXECUTION_HELP)] = [Execution.AUTO],  # noqa: B006
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for report.json and success.png.")] = Path(
        "eval-report"
    ),
    as_json: Json = False,
) -> None:
    """Evaluate a policy in closed loop, in virtual time.

    Runs the service's scheduler and engine. On 2 cores an episode takes about a second, the default of 200 episodes two
    to four minutes.
    """
    from edgeflow.lab.demo.evaluation import EvaluationPlan, eval_command

    choices = {"yes": [True], "no": [False], "both": [True, False]}
    if anchored not in choices:
        raise ConfigError(f"anchored: must be yes, no or both, got {anchored!r}")
    if (Mode.DEPTH in mode) != (depth > 0):
        raise ConfigError("mode: depth and --depth are only given together")
    speculation = Speculation(tolerance_bins, max_passes)
    if speculation != Speculation() and Mode.SPECULATIVE not in mode:
        raise ConfigError("mode: --tolerance-bins and --max-passes need --mode speculative")
    plan = EvaluationPlan(
        episodes=episodes,
        modes=mode,
        anchored=choices[anchored],
        speeds=[each / 100 for each in speed],
        profiles=profile,
        seeds=range(seeds),
        period_s=1 / frame_hz,
        model=model or EMBEDDED_POLICIES[policy],
        depth=depth,
        speculation=speculation,
        executions=execution,
        kv=kv,
        jump_m=jump / 100,
    )
    eval_command(plan, out, as_json=as_json)


def train_demo(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for the data, the state to resume from, and the model.")
    ] = Path("train-demo"),
    minutes: Annotated[
        OptionalFloat, typer.Option(metavar="N", help="Minutes to train; the learning-rate schedule adapts.")
    ] = None,
    seed: Annotated[int, number("Seed of the data, initial weights and batches.", 0, MOST_SEED)] = 0,
    no_resume: Annotated[
        bool, typer.Option("--no-resume", help="Start again, ignoring the state in the folder.")
    ] = False,
    device: Device = "auto",
    policy: Embedded = "tokens",
    chat: Annotated[bool, typer.Option("--chat", help="Train the chat model instead of a policy.")] = False,
    logs: Annotated[bool, typer.Option("--logs", help="Train the embedded chat model further, on robot logs.")] = False,
    begin: Annotated[
        OptionalText, typer.Option(help="With --logs: the checkpoint to start from, such as demo-logs.")
    ] = None,
) -> None:
    """Train an embedded model.

    Takes hours on 2 cores without --minutes; an interrupted run resumes. The policies learn from a scripted expert by
    behaviour cloning. With --chat, the chat model learns from generated questions about the robot's state; with
    --logs, it learns to answer questions about long logs of such states too.
    """
    if chat and logs:
        raise ConfigError("logs: give --chat or --logs, not both")
    if begin is not None and not logs:
        raise ConfigError("begin: needs --logs")
    if policy != "tokens" and (chat or logs):
        raise ConfigError(f"policy: --chat and --logs do not train a policy, got {policy}")
    if logs:
        from edgeflow.lab.demo.chat.logs.trainer import train_logs

        train_logs(out, minutes, seed, not no_resume, device, begin=begin)
        return
    if chat:
        from edgeflow.lab.demo.chat.trainer import train_chat as train
    elif policy == "flow":
        from edgeflow.lab.demo.flow_training.trainer import train_flow as train
    else:
        from edgeflow.lab.demo.training.trainer import train_demo as train

    train(out, minutes, seed, not no_resume, device)


def train_gate(
    model: Annotated[str, typer.Argument(help="Checkpoint directory of a chat model, hub id, demo-chat or demo-logs.")],
    data: Annotated[
        list[Path],
        typer.Option(metavar="FILE", help='JSONL file of lines {"text": ...} or {"messages": [...]}. Repeatable.'),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder for gate.json, gate.safetensors and the state to resume from."),
    ],
    sink: Annotated[int, number("First tokens, which are always kept.", 0)] = 300,
    window: Annotated[int, number("Newest tokens, which are not folded yet.", 1)] = 200,
    segment: Annotated[int, number("Tokens that are folded into memory together.", 1)] = 2048,
    positions: Annotated[
        Literal["absolute", "local"],
        typer.Option(
            metavar="NAME",
            help="RoPE positions: absolute (in the whole text) or local (in each pass, within the trained length).",
        ),
    ] = "absolute",
    epochs: Annotated[OptionalInt, number("Times that each text is learned; default: 2.", 1)] = None,
    steps: Annotated[OptionalInt, number("Batches to train on, instead of --epochs.", 1)] = None,
    lr: Annotated[float, typer.Option(metavar="N", help="Highest learning rate, at most 1.")] = 0.005,
    batch_tokens: Annotated[int, number("Tokens per batch; a longer text is a batch by itself.", 1)] = 8192,
    seed: Annotated[int, number("Seed of the gate's initial weights and of the order of texts.", 0, MOST_SEED)] = 0,
    no_resume: Annotated[
        bool, typer.Option("--no-resume", help="Start again, ignoring the state in the folder.")
    ] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Train the memory gate of a chat model on long texts.

    With the gate, the model answers from texts longer than its slot. Only the gate's weights change, the model's files
    do not. In a text, every token after the first segment is learned; in messages, only the assistant's answers. An
    interrupted run resumes. A file written by draw-logs needs the --sink, --window and --segment that it was written
    with. Models: Llama, Qwen2, Qwen2.5, Qwen3.
    """
    from edgeflow.lab.training.gate.run import GateRequest, train_gate_command
    from edgeflow.models.memory_gate import GateRules

    if not 0 < lr <= 1:
        raise ConfigError(f"lr: must be above 0 and at most 1, got {lr}")
    request = GateRequest(
        model=model,
        data=tuple(data),
        out=out,
        rules=GateRules(sink=sink, window=window, segment=segment, positions=positions),
        rate=lr,
        batch_tokens=batch_tokens,
        seed=seed,
        device=device,
        epochs=epochs,
        steps=steps,
        resume=not no_resume,
    )
    train_gate_command(request, as_json=as_json)


def eval_chat(
    model: Annotated[str, typer.Option(help="Checkpoint directory, hub id, demo-chat or demo-logs.")] = "demo-chat",
    questions: Annotated[int, number("Number of held-out questions.", 1)] = 500,
    seed: Annotated[str, typer.Option(help="Seed of the questions.")] = "held out",
    kv: ChosenKV = "model",
    lookup: Annotated[bool, typer.Option("--lookup", help="Draft by prompt look-up.")] = False,
    as_json: Json = False,
) -> None:
    """Measure the exact match of a chat model on held-out questions.

    The default of 500 questions takes demo-chat one to three minutes on 2 cores, and its 4-bit checkpoint longer.
    Exits with code 1 below the threshold for a release.
    """
    from edgeflow.lab.demo.chat.evaluate import eval_chat_command

    raise typer.Exit(eval_chat_command(model, questions, seed, kv=kv, lookup=lookup, as_json=as_json))


def eval_logs(
    model: Annotated[str, typer.Option(help="Checkpoint directory, hub id, demo-logs or demo-chat.")] = "demo-logs",
    questions: Annotated[int, number("Number of held-out questions.", 1)] = 512,
    seed: Annotated[str, typer.Option(help="Seed of the logs and questions.")] = "0",
    longest: Annotated[int, number("Most tokens per prompt, 256 to 2040.", 256)] = 2040,
    as_json: Json = False,
) -> None:
    """Measure the exact match of a chat model on robot logs.

    Asks held-out questions about logs of robot states. Exits with code 1 below the threshold for a release.
    """
    from edgeflow.lab.demo.chat.logs.command import eval_logs_command

    raise typer.Exit(eval_logs_command(model, questions, seed, longest, as_json=as_json))


def draw_logs(
    out: Annotated[Path, typer.Argument(help="JSONL file to write.")],
    conversations: Annotated[int, number("Number of conversations.", 1)] = 2000,
    turns: Annotated[int, number("Questions per conversation.", 1)] = 6,
    segments: Annotated[int, number("Most segments that are folded.", 1)] = 6,
    sink: Annotated[int, number("First tokens, which are always kept.", 0)] = 32,
    window: Annotated[int, number("Newest tokens, which are not folded yet.", 1)] = 96,
    segment: Annotated[int, number("Tokens that are folded into memory together.", 1)] = 256,
    seed: Annotated[int, number("Seed of the logs and questions.")] = 0,
    as_json: Json = False,
) -> None:
    """Generate conversations about long robot logs for train-gate.

    The answers lie in the compressed part of a log. train-gate needs the same --sink, --window and --segment, which are
    not its defaults; the command prints them at the end.
    """
    from edgeflow.lab.demo.chat.logs.command import draw_logs_command
    from edgeflow.lab.demo.chat.logs.long_logs import LongLogs
    from edgeflow.models.memory_gate import GateRules

    rules = GateRules(sink=sink, window=window, segment=segment)
    source = LongLogs(rules=rules, most_segments=segments, turns=turns)
    draw_logs_command(out, source, conversations, seed, as_json=as_json)
