"""The implementation of `edgeflow sim`: from the command's options to its output."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from edgeflow.lab.progress import reporting
from edgeflow.lab.sim.environment import GymFrame, GymRobot
from edgeflow.lab.sim.names import KNOWN, names_of
from edgeflow.lab.sim.pilots import LocalChunks, Lockstep, Pilot, RealTime, ServedChunks, UnservedPilot, client_of
from edgeflow.lab.sim.run import FilmStrip, GymRun, run_episodes
from edgeflow.lab.sim.scripted import chosen
from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.measure import distribution
from edgeflow_client.loadtest.results import json_text
from edgeflow_client.loadtest.terminal import table_console
from edgeflow_client.types import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class GymPlan:
    """The options of `edgeflow sim`."""

    environment: str
    arguments: Mapping[str, Any]
    """Arguments of the environment."""
    names: Path | None
    instruction: str | None
    address: str | None
    """Address of a service."""
    model: str | None
    """Checkpoint of a policy in this process."""
    config: Path | None
    """Configuration of that policy."""
    policy: str | None
    """`random` or `scripted`, instead of both."""
    mode: Mode | None
    rows: int
    real_time: bool
    episodes: int
    seed: int
    credentials: Credentials

    def __post_init__(self) -> None:
        drivers = [each for each in (self.address, self.model, self.policy) if each is not None]
        if len(drivers) != 1:
            raise ConfigError("sim: give one of ADDRESS, --model and --policy")
        for key, given in (("real_time", self.real_time), ("mode", self.mode)):
            if given and self.address is None:
                raise ConfigError(f"{key}: is for a service: give its ADDRESS")
        if self.config and self.model is None:
            raise ConfigError("config: is for --model; a service has its own")


def sim_command(plan: GymPlan, strip_file: Path | None, as_json: bool) -> None:
    """Run the episodes and print their results."""
    with redirect_stdout(sys.stderr):  # some environments print
        run = _run(plan, strip_file)
    if as_json:
        print(json_text(run.to_json()))
    else:
        table_console().print(run.table())


def _run(plan: GymPlan, strip_file: Path | None) -> GymRun:
    names = names_of(plan.environment, plan.names)
    strip = FilmStrip(strip_file) if strip_file else None
    if plan.policy is None and not (names.cameras or names.state):
        known = ", ".join(each.pattern for each in KNOWN)
        raise ConfigError(f"names: {plan.environment} is not one of {known}: give --names FILE")
    with ExitStack() as stack:
        robot = stack.enter_context(closing(GymRobot(plan.environment, names, plan.arguments, plan.instruction)))
        if plan.address is not None and not robot.instruction:
            raise ConfigError("instruction: a service needs one: give --instruction, or `instruction` in the names")
        frame = robot.reset(plan.seed)
        pilot, policy = _pilot(plan, robot, frame, stack)
        with reporting(Console(stderr=True)) as report:
            seeds = range(plan.seed, plan.seed + plan.episodes)
            episodes, seconds = run_episodes(robot, pilot, seeds, report, strip)
    if strip is not None:
        strip.write("success" if episodes[0].success else "end")
    return GymRun(
        environment=robot.id,
        policy=policy,
        time="real time" if plan.real_time else "lockstep",
        rate_hz=robot.rate_hz,
        episodes=tuple(episodes),
        seconds=seconds,
        latency_ms=distribution(pilot.latencies_ms),
        missed=pilot.missed,
    )


def _pilot(plan: GymPlan, robot: GymRobot, frame: GymFrame, stack: ExitStack) -> tuple[Pilot, str]:
    """The pilot of the environment, and the name of its policy. frame: any observation of the environment."""
    if plan.policy is not None:
        return UnservedPilot(chosen(plan.policy, robot)), plan.policy
    if plan.model is not None:
        from edgeflow import load  # loads torch

        policy = stack.enter_context(load(plan.model, config=plan.config))
        robot.check(policy.schema, lockstep=True)
        return Lockstep(LocalChunks(policy, frame), robot, plan.rows), plan.model
    client = client_of(
        plan.address or "", robot, frame, real_time=plan.real_time, mode=plan.mode, credentials=plan.credentials
    )
    stack.enter_context(client)
    robot.check(client.opened.schema, lockstep=not plan.real_time)
    pilot = RealTime(client, robot) if plan.real_time else Lockstep(ServedChunks(client), robot, plan.rows)
    return pilot, client.opened.model
