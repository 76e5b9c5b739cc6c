"""The conditions of the closed-loop evaluation, and how many episodes of each are run."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeflow.contract import Pace, Speculation
from edgeflow.lab.demo.evaluation import THIS_MACHINE, TableCondition, pace_name
from edgeflow.lab.demo.simulated.robot import Delay
from edgeflow.model_paths import EMBEDDED_MODEL
from edgeflow_client.types import Execution

STAGES = 7  # K of the embedded policy, and of those that `edgeflow train-demo` makes
PERIOD_S = 0.05  # between camera frames
SERIAL, PIPELINED = Pace(1), Pace(STAGES)
EXACT, ONE_BIN, ONE_PASS = (Pace(0, how) for how in (Speculation(), Speculation(1), Speculation(0, 1)))
MODES = (SERIAL, Pace(2), Pace(4), PIPELINED, EXACT, ONE_BIN, ONE_PASS)
SPEEDS = (0.0, 0.05, 0.1)  # of the objects, m/s
MOVING = 0.05
ORIN, RTX5090 = "orin", "rtx5090"
SLOW_PROFILES = (ORIN, "orin-smolvla", "orin-pi05")
DEVICES = (*SLOW_PROFILES, RTX5090, "thor-pi05")  # of the executions of a flow policy
AT_ONCE = "at once"  # passes that take no time, under an injected delay
GRID_EPISODES, COMPARED_EPISODES, ASIDE_EPISODES, DELAYED_EPISODES = 100, 200, 50, 20
COMPARED = (SERIAL, PIPELINED, EXACT, ONE_BIN, ONE_PASS)
DELAYS_MS = ((0, 0), (100, 0), (200, 0), (300, 0), (400, 0), (200, 100))  # mean, jitter
BLOCK = 50  # episodes that one process runs before their results are stored


@dataclass(frozen=True, slots=True)
class ClosedLoopCell:
    """One condition of the evaluation."""

    condition: TableCondition
    episodes: int
    policy: str = EMBEDDED_MODEL
    """The embedded policy, or the directory of another."""


@dataclass(frozen=True, slots=True)
class EpisodeBlock:
    """Consecutive episodes of a cell: `count` of them from number `first`, which are the same in every cell."""

    cell: ClosedLoopCell
    first: int
    count: int

    @property
    def name(self) -> str:
        """The name of its file."""
        condition = self.cell.condition
        delay = condition.delay
        parts = (
            Path(self.cell.policy).resolve().as_posix() if self.cell.policy != EMBEDDED_MODEL else EMBEDDED_MODEL,
            condition.profile,
            condition.mode,
            "anchored" if condition.anchored else "unanchored",
            f"{100 * condition.speed:g} cm per s",
            f"delay {delay.mean_ns // 1_000_000} jitter {delay.jitter_ns // 1_000_000}" if delay else "",
            "" if condition.execution is Execution.AUTO else condition.execution.value,
            f"follow {condition.follow_s:g}" if condition.follow_s else "",
            f"{self.first} to {self.first + self.count}",
        )
        return "-".join(re.sub(r"[^\w.]+", "_", part).strip("_") for part in parts if part) + ".json"

    @property
    def rank(self) -> int:
        """Its place in the run: first the modes compared on one device, last what only figures show."""
        condition = self.cell.condition
        if condition.delay is not None:
            return 3
        if condition.profile in SLOW_PROFILES:
            return 4 if self.first else 2
        return int(self.cell.policy != EMBEDDED_MODEL)

    @property
    def cost(self) -> float:
        """A guess of its seconds, to begin with the longest."""
        condition = self.cell.condition
        passes = 3 if condition.profile in SLOW_PROFILES else 20
        lost = condition.speed >= MOVING and condition.pace in (PIPELINED, Pace(4), Pace(2))
        slow = lost or condition.speed > MOVING or condition.profile in SLOW_PROFILES or condition.delay is not None
        return self.count * passes * (8.0 if slow else 2.0)


def cells(policies: Sequence[str], most: int | None = None) -> list[ClosedLoopCell]:
    """All cells. policies: of other training seeds. most: episodes per cell, to try it out."""
    every = [*_grid(), *_aside(), *_delayed(), *_other_policies(policies)]
    return [ClosedLoopCell(cell.condition, min(cell.episodes, most or cell.episodes), cell.policy) for cell in every]


def blocks(cell: ClosedLoopCell) -> list[EpisodeBlock]:
    """The episodes of a cell, in order."""
    return [
        EpisodeBlock(cell, BLOCK * index, min(BLOCK, cell.episodes - BLOCK * index))
        for index in range(math.ceil(cell.episodes / BLOCK))
    ]


def condition(
    pace: Pace, speed: float, profile: str, *, anchored: bool = True, delay: Delay | None = None, **robot: Any
) -> TableCondition:
    """The condition at a pace of STAGES tokens, or serial. robot: other fields of TableCondition."""
    return TableCondition(
        mode=pace_name(pace, STAGES),
        pace=pace,
        anchored=anchored,
        speed=speed,
        profile=profile,
        delay=delay,
        **robot,
    )


def _grid() -> Iterator[ClosedLoopCell]:
    """Every mode, speed and device; most episodes where the modes are compared."""
    for profile, speed, pace in itertools.product((RTX5090, ORIN), SPEEDS, MODES):
        compared = profile == RTX5090 and speed == MOVING and pace in COMPARED
        goes_on = condition(pace, speed, profile, execution=Execution.FRESH)
        yield ClosedLoopCell(goes_on, COMPARED_EPISODES if compared else GRID_EPISODES)


def _aside() -> Iterator[ClosedLoopCell]:
    """Actions resolved against the present pose, and this machine's own pass times."""
    for pace in (SERIAL, PIPELINED, EXACT):
        yield ClosedLoopCell(condition(pace, MOVING, RTX5090, anchored=False), ASIDE_EPISODES)
        yield ClosedLoopCell(condition(pace, MOVING, THIS_MACHINE), ASIDE_EPISODES)


def _delayed() -> Iterator[ClosedLoopCell]:
    """The same tokens after a given delay, an action per frame."""
    for mean_ms, jitter_ms in DELAYS_MS:
        delay = Delay(mean_ms * 1_000_000, jitter_ms * 1_000_000)
        yield ClosedLoopCell(condition(EXACT, MOVING, AT_ONCE, delay=delay), DELAYED_EPISODES)


def _other_policies(policies: Sequence[str]) -> Iterator[ClosedLoopCell]:
    for policy, pace in itertools.product(policies, (SERIAL, EXACT)):
        yield ClosedLoopCell(condition(pace, MOVING, RTX5090), GRID_EPISODES, policy)
