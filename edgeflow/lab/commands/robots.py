"""The simulated robot, and the demonstration."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from edgeflow.commands.options import (
    MODE_HELP,
    Json,
    OptionalFloat,
    OptionalInt,
    OptionalMode,
    TlsCa,
    TlsCert,
    TlsKey,
    TokenFile,
    number,
)
from edgeflow.config.devices import PROFILE_HELP
from edgeflow.ipc.parent_death import follow_parent
from edgeflow.lab.commands.options import (
    AGE_HELP,
    DEPTH_HELP,
    EMBEDDED_POLICIES,
    PASSES_HELP,
    TOLERANCE_HELP,
    OptionalEmbedded,
)
from edgeflow_client.loadtest.terminal import run as run_command
from edgeflow_client.types import MOST_TOLERANCE_BINS

STDOUT, STDERR = 1, 2
NICENESS = 10
MOST_EPISODES = 1_000_000  # the operator ends it


def robot(
    address: Annotated[str, typer.Argument(help="gRPC address of the service, host:port.")],
    mode: Annotated[OptionalMode, typer.Option(metavar="MODE", help=f"{MODE_HELP} Default: the service's.")] = None,
    depth: Annotated[int, number(DEPTH_HELP, 0)] = 0,
    tolerance_bins: Annotated[int, number(TOLERANCE_HELP, 0, MOST_TOLERANCE_BINS)] = 0,
    max_passes: Annotated[int, number(PASSES_HELP, 0)] = 0,
    max_action_age_ms: Annotated[OptionalInt, number(AGE_HELP, 1)] = None,
    episodes: Annotated[int, number("Number of episodes.", 1)] = 10,
    speed: Annotated[float, number("Speed of the objects in cm/s, up to 20.", 0, 20)] = 0.0,
    present: Annotated[
        bool,
        typer.Option("--no-anchored", help="Apply actions to the current pose instead of the pose in their frame."),
    ] = False,
    frame_hz: Annotated[OptionalFloat, number("Camera frames per second; default: 50.", 1)] = None,
    seed: Annotated[int, number("Seed of the first episode.")] = 0,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Run the simulated robot against a service."""
    from edgeflow.lab.demo.command import robot_command
    from edgeflow.lab.demo.lockstep import FRESH_SEEDS
    from edgeflow.lab.demo.robot_run import FRAME_HZ, RunPlan
    from edgeflow_client.connection.credentials import Credentials

    plan = RunPlan(
        mode=mode,
        depth=depth,
        tolerance_bins=tolerance_bins,
        max_passes=max_passes,
        max_action_age_s=max_action_age_ms / 1000 if max_action_age_ms else None,
        episodes=episodes,
        anchored=not present,
        object_speed=speed / 100,
        seed=FRESH_SEEDS + seed,
        frame_hz=frame_hz or FRAME_HZ,
    )
    credentials = Credentials.of(tls_ca, tls_cert, tls_key, token_file)
    raise typer.Exit(robot_command(address, plan, credentials, as_json))


def run() -> None:
    """The process of the robot that a service starts for an operator (service/children/simulated_robot.py).

    Arguments: the service's gRPC address and process id, and the descriptor that it writes its output to.
    """
    address, parent, output = sys.argv[1:]
    for descriptor in (STDOUT, STDERR):
        os.dup2(int(output), descriptor)
    follow_parent(int(parent))
    os.nice(NICENESS)
    run_command(partial(robot, address, episodes=MOST_EPISODES), "edgeflow robot", doctor="edgeflow doctor")


def demo(
    seconds: Annotated[float, number("Seconds per mode; an episode that has begun is finished.", 1)] = 45.0,
    speed: Annotated[float, number("Speed of the objects in cm/s, up to 20; 0: still.", 0, 20)] = 5.0,
    profile: Annotated[
        str,
        typer.Option(help=PROFILE_HELP),
    ] = "rtx5090",
    model: Annotated[
        str, typer.Option(help="Checkpoint directory, hub id, demo or demo-flow; default: the embedded --policy.")
    ] = "",
    policy: OptionalEmbedded = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the report.")] = Path("demo-report"),
    show_page: Annotated[
        bool, typer.Option("--open", help="Open the live page of its service in the browser while it runs.")
    ] = False,
) -> None:
    """Serve a policy and compare its modes with the simulated robot.

    Three modes of 45 seconds take about three minutes. The modes are those of the policy's family: serial, pipelined
    and speculative if actions are tokens, serial and pipelined if chunks are denoised, serial if a chunk takes one
    pass.
    """
    from edgeflow.lab.demo.command import demo_command

    like = EMBEDDED_POLICIES[policy] if policy else ""
    served = model or like or EMBEDDED_POLICIES["tokens"]
    raise typer.Exit(demo_command(seconds, speed / 100, profile, served, out, like=like, show_page=show_page))
