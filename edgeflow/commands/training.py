"""Commands that train and evaluate the embedded models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgeflow.commands.options import DEPTH_HELP, ENDS, MODE_HELP, Json, OptionalFloat
from edgeflow.errors import ConfigError
from edgeflow.types import Mode

PROFILE_HELP = "Pace of a device: none (this machine), orin, rtx5090, FILE."


def eval_demo(
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each condition and seed.")] = 200,
    mode: Annotated[list[Mode], typer.Option(help=f"Repeat for several. {MODE_HELP}")] = list(ENDS),  # noqa: B006 - typer reads it
    depth: Annotated[int, typer.Option(min=0, help=DEPTH_HELP)] = 0,
    anchored: Annotated[
        str, typer.Option(help="yes, no or both: the pose relative actions are resolved against.")
    ] = "yes",
    speed: Annotated[list[float], typer.Option(help="Speed of the objects, cm/s; repeat for several.")] = [0.0],  # noqa: B006
    profile: Annotated[list[str], typer.Option(help=PROFILE_HELP)] = ["none"],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="Disjoint sets of episodes.")] = 1,
    frame_hz: Annotated[float, typer.Option(min=1, max=100, help="Camera frames a second.")] = 20.0,
    model: Annotated[str, typer.Option(help="Checkpoint directory, or demo (embedded).")] = "demo",
    out: Annotated[Path, typer.Option(help="Folder of report.json and success.png.")] = Path("eval-report"),
    as_json: Json = False,
) -> None:
    """Closed-loop evaluation of the embedded policy, in virtual time with the real scheduler and engine."""
    from edgeflow.demo.eval_command import eval_command
    from edgeflow.demo.evaluation import EvaluationPlan

    choices = {"yes": [True], "no": [False], "both": [True, False]}
    if anchored not in choices:
        raise ConfigError(f"anchored: {anchored!r} is none of yes, no, both")
    if Mode.AUTO in mode or (Mode.DEPTH in mode) != (depth > 0):
        raise ConfigError("mode: eval-demo takes serial, pipelined, and depth together with --depth")
    plan = EvaluationPlan(
        episodes=episodes,
        modes=mode,
        anchored=choices[anchored],
        speeds=[each / 100 for each in speed],
        profiles=profile,
        seeds=range(seeds),
        period_s=1 / frame_hz,
        model=model,
        depth=depth,
    )
    eval_command(plan, out, as_json=as_json)


def train_demo(
    out: Annotated[Path, typer.Option(help="Folder of the data, the state to resume from and the policy.")] = Path(
        "train-demo"
    ),
    minutes: Annotated[
        OptionalFloat, typer.Option(help="Stop after so many minutes; the schedule fits itself to it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of data, initial weights and batches.")] = 0,
    resume: Annotated[bool, typer.Option(help="Go on from the folder's state.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    chat: Annotated[bool, typer.Option("--chat", help="Train the chat model, not the policy.")] = False,
) -> None:
    """Train an embedded model from nothing.

    The policy: data from the scripted expert, then behaviour cloning. With --chat: the chat model, from generated
    questions about the robot's state.
    """
    if chat:
        from edgeflow.demo.chat.loop import train_chat as train
    else:
        from edgeflow.demo.training.loop import train_demo as train

    train(out, minutes, seed, resume, device)
