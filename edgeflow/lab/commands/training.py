"""Commands about the embedded models, which they train and evaluate, and about memory gates of chat models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from edgeflow.commands.options import MODE_HELP, Json, OptionalFloat, OptionalInt, OptionalText
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
from edgeflow.lab.demo.simulated.episodes import Execution
from edgeflow.policies.flow.config import MOST_SEED
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import MOST_TOLERANCE_BINS, Mode

EXECUTION_HELP = (
    "How chunks are executed. rtc: each continues the one in execution; fresh: each begins anew; synchronous: the "
    "robot rests while it waits. Repeat for several."
)
PROFILE_HELP = "Device whose pass times to use: none (this machine), orin, rtx5090, FILE."


def eval_demo(
    episodes: Annotated[int, typer.Option(min=1, help="Episodes per condition and seed.")] = 200,
    mode: Annotated[list[Mode], typer.Option(metavar="MODE", help=f"{MODE_HELP} Repeat for several.")] = [Mode.AUTO],  # noqa: B006 - typer reads it
    depth: Annotated[int, typer.Option(min=0, help=DEPTH_HELP)] = 0,
    tolerance_bins: Annotated[int, typer.Option(min=0, max=MOST_TOLERANCE_BINS, help=TOLERANCE_HELP)] = 0,
    max_passes: Annotated[int, typer.Option(min=0, help=PASSES_HELP)] = 0,
    anchored: Annotated[
        str, typer.Option(help="yes: apply actions to the pose of their frame; no: to the present pose; both.")
    ] = "yes",
    speed: Annotated[list[float], typer.Option(help="Speed of the objects, in cm/s. Repeat for several.")] = [0.0],  # noqa: B006
    profile: Annotated[list[str], typer.Option(help=PROFILE_HELP)] = ["none"],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="Number of disjoint sets of episodes.")] = 1,
    frame_hz: Annotated[float, typer.Option(min=1, max=100, help="Camera frames per second.")] = 20.0,
    model: Annotated[str, typer.Option(help="Checkpoint directory; default: an embedded policy.")] = "",
    policy: Embedded = "tokens",
    kv: ChosenKV = "model",
    execution: Annotated[list[Execution], typer.Option(metavar="NAME", help=EXECUTION_HELP)] = [Execution.RTC],  # noqa: B006
    out: Annotated[Path, typer.Option(help="Directory for report.json and success.png.")] = Path("eval-report"),
    as_json: Json = False,
) -> None:
    """Evaluate a policy in closed loop, in virtual time, with the real scheduler and engine.

    On 2 cores an episode takes about a second; the 200 of the default two to four minutes.
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
    )
    eval_command(plan, out, as_json=as_json)


def train_demo(
    out: Annotated[Path, typer.Option(help="Directory for the data, the state to resume from, and the model.")] = Path(
        "train-demo"
    ),
    minutes: Annotated[OptionalFloat, typer.Option(help="Minutes to train; the learning-rate schedule adapts.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of data, initial weights and batches.")] = 0,
    resume: Annotated[bool, typer.Option(help="Resume from the state in the directory.")] = True,
    device: Device = "auto",
    policy: Embedded = "tokens",
    chat: Annotated[bool, typer.Option("--chat", help="Train the chat model instead of a policy.")] = False,
    logs: Annotated[bool, typer.Option("--logs", help="Train the embedded chat model further, on logs.")] = False,
    begin: Annotated[
        OptionalText, typer.Option(help="With --logs: begin with this checkpoint, or demo-logs, instead.")
    ] = None,
) -> None:
    """Train an embedded model: hours on 2 cores without --minutes. A run that was stopped goes on.

    The policies learn from a scripted expert by behaviour cloning; with --chat, the chat model learns from generated
    questions about the robot's state. With --logs, the embedded chat model learns to answer questions about long logs
    of such states, too.
    """
    if chat and logs:
        raise ConfigError("logs: give --chat or --logs, not both")
    if begin is not None and not logs:
        raise ConfigError("begin: only --logs begins with a checkpoint")
    if policy != "tokens" and (chat or logs):
        raise ConfigError(f"policy: --chat and --logs train no policy, got {policy}")
    if logs:
        from edgeflow.lab.demo.chat.logs.training import train_logs

        train_logs(out, minutes, seed, resume, device, begin=begin)
        return
    if chat:
        from edgeflow.lab.demo.chat.loop import train_chat as train
    elif policy == "flow":
        from edgeflow.lab.demo.flow_training.loop import train_flow as train
    else:
        from edgeflow.lab.demo.training.loop import train_demo as train

    train(out, minutes, seed, resume, device)


def train_gate(
    model: Annotated[str, typer.Argument(help="Checkpoint directory of a chat model, hub id, demo-chat or demo-logs.")],
    data: Annotated[
        list[Path],
        typer.Option(help='JSONL file of lines {"text": ...} or {"messages": [...]}. Repeat for several.'),
    ],
    out: Annotated[Path, typer.Option(help="Folder for gate.json, gate.safetensors and the state to resume from.")],
    sink: Annotated[int, typer.Option(min=0, help="First tokens that are kept.")] = 300,
    window: Annotated[int, typer.Option(min=1, help="Newest tokens that are not folded yet.")] = 200,
    segment: Annotated[int, typer.Option(min=1, help="Tokens that are folded into memory together.")] = 2048,
    positions: Annotated[
        Literal["absolute", "local"],
        typer.Option(help="RoPE positions: in the whole text, or inside each pass, within the trained length."),
    ] = "absolute",
    epochs: Annotated[OptionalInt, typer.Option(min=1, help="Times that each text is learned; default: 2.")] = None,
    steps: Annotated[OptionalInt, typer.Option(min=1, help="Batches to train on, instead of --epochs.")] = None,
    lr: Annotated[float, typer.Option(help="Highest learning rate, at most 1.")] = 0.005,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a batch; a longer text is one by itself.")] = 8192,
    seed: Annotated[
        int, typer.Option(min=0, max=MOST_SEED, help="Seed of the gate's first weights and of the order of texts.")
    ] = 0,
    resume: Annotated[bool, typer.Option(help="Resume from the state in the folder.")] = True,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Train the memory gate of a chat model, so that it answers from texts longer than its slot.

    Only the gate's weights move, and the model's files stay as they are. Of a text every token after the first
    segment is learned, of messages only the assistant's answers. The bar shows the time that is left; a run that was
    stopped goes on. A file of draw-logs needs its --sink, --window and
    --segment. Llama, Qwen2, Qwen2.5, Qwen3.
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
        resume=resume,
    )
    train_gate_command(request, as_json=as_json)


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
