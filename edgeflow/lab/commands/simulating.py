"""Simulators of others: gymnasium environments, driven by a service or by a policy in this process."""

from __future__ import annotations

from typing import Annotated, Literal, Optional

import typer

from edgeflow.commands.options import (
    Json,
    OptionalMode,
    OptionalPath,
    OptionalText,
    TlsCa,
    TlsCert,
    TlsKey,
    TokenFile,
    number,
    overrides_of,
)


def sim(
    env: Annotated[str, typer.Argument(help="Id of a gymnasium environment, such as gym_pusht/PushT-v0.")],
    address: Annotated[
        OptionalText, typer.Argument(help="gRPC address of a service, host:port, unless --model or --policy is given.")
    ] = None,
    model: Annotated[
        OptionalText, typer.Option(help="Run this policy in this process: a directory, a hub id, demo or demo-flow.")
    ] = None,
    config: Annotated[OptionalPath, typer.Option(metavar="FILE", help="Configuration of --model (JSON).")] = None,
    policy: Annotated[
        Optional[Literal["random", "scripted"]],  # noqa: UP045
        typer.Option(metavar="NAME", help="Run no policy: random (actions) or scripted (for known environments)."),
    ] = None,
    names: Annotated[
        OptionalPath,
        typer.Option(metavar="FILE", help="Name map (JSON): the policy's names for parts of the observation."),
    ] = None,
    settings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="KEY=VALUE", help="An argument of the environment, JSON or text. Repeatable."),
    ] = None,
    instruction: Annotated[OptionalText, typer.Option(help="The task in words, instead of the name map's.")] = None,
    episodes: Annotated[int, number("Number of episodes.", 1)] = 10,
    seed: Annotated[int, number("Seed of the first episode; it grows by 1 per episode.", 0)] = 0,
    rows: Annotated[
        int, number("In lockstep, rows of a chunk that are executed before the next one; 0: half of them.", 0)
    ] = 0,
    real_time: Annotated[
        bool, typer.Option("--real-time", help="Step the environment by the clock while the service computes.")
    ] = False,
    mode: Annotated[
        OptionalMode, typer.Option(metavar="MODE", help="Mode of the session; default: the service's.")
    ] = None,
    strip: Annotated[
        OptionalPath, typer.Option(metavar="FILE", help="Write pictures of the first episode side by side (PNG).")
    ] = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Run a policy in a gymnasium environment.

    By default the environment waits for each answer (lockstep), so that success is the policy's own. With --real-time
    it goes on while the service computes, as a robot does.
    """
    from edgeflow.lab.sim.command import GymPlan, sim_command
    from edgeflow_client.connection.credentials import Credentials

    plan = GymPlan(
        environment=env,
        arguments=overrides_of(settings or [], {}),
        names=names,
        instruction=instruction,
        address=address,
        model=model,
        config=config,
        policy=policy,
        mode=mode,
        rows=rows,
        real_time=real_time,
        episodes=episodes,
        seed=seed,
        credentials=Credentials.of(tls_ca, tls_cert, tls_key, token_file),
    )
    sim_command(plan, strip, as_json)
