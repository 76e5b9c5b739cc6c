"""Commands that train and evaluate the embedded models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgeflow.commands.options import (
    DEPTH_HELP,
    EMBEDDED_POLICIES,
    ENDS,
    MODE_HELP,
    PASSES_HELP,
    TOLERANCE_HELP,
    Embedded,
    Json,
    OptionalFloat,
)
from edgeflow.demo.simulated.episodes import Execution
from edgeflow.errors import ConfigError
from edgeflow.types import MOST_TOLERANCE_BINS, Mode, Speculation

EXECUTION_HELP = (
    "How chunks are played. rtc: each continues the one being played; fresh: each begins anew; synchronous: the robot "
    "rests while it waits. Repeat for several."
)
PROFILE_HELP = "Device whose pass times to use: none (this machine), orin, rtx5090, FILE."


def eval_demo(
    episodes: Annotated[int, typer.Option(min=1, help="Episodes per condition and seed.")] = 200,
    mode: Annotated[list[Mode], typer.Option(help=f"{MODE_HELP} Repeat for several.")] = list(ENDS),  # noqa: B006 - typer reads it
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
    execution: Annotated[list[Execution], typer.Option(help=EXECUTION_HELP)] = [Execution.RTC],  # noqa: B006
    out: Annotated[Path, typer.Option(help="Directory for report.json and success.png.")] = Path("eval-report"),
    as_json: Json = False,
) -> None:
    """Evaluate a policy in closed loop, in virtual time, with the real scheduler and engine."""
    from edgeflow.demo.eval_command import eval_command
    from edgeflow.demo.evaluation import EvaluationPlan

    choices = {"yes": [True], "no": [False], "both": [True, False]}
    if anchored not in choices:
        raise ConfigError(f"anchored: must be yes, no or both, got {anchored!r}")
    if Mode.AUTO in mode or (Mode.DEPTH in mode) != (depth > 0):
        raise ConfigError("mode: eval-demo takes serial, pipelined, speculative, or depth together with --depth")
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
    )
    eval_command(plan, out, as_json=as_json)


def train_demo(
    out: Annotated[Path, typer.Option(help="Directory for the data, the state to resume from, and the model.")] = Path(
        "train-demo"
    ),
    minutes: Annotated[OptionalFloat, typer.Option(help="Minutes to train; the learning-rate schedule adapts.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of data, initial weights and batches.")] = 0,
    resume: Annotated[bool, typer.Option(help="Resume from the state in the directory.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    policy: Embedded = "tokens",
    chat: Annotated[bool, typer.Option("--chat", help="Train the chat model instead of a policy.")] = False,
) -> None:
    """Train an embedded model from scratch.

    The policies learn from a scripted expert by behaviour cloning; with --chat, the chat model learns from generated
    questions about the robot's state.
    """
    if chat:
        from edgeflow.demo.chat.loop import train_chat as train
    elif policy == "flow":
        from edgeflow.demo.flow_training.loop import train_flow as train
    else:
        from edgeflow.demo.training.loop import train_demo as train

    train(out, minutes, seed, resume, device)
