"""The cells of the comparison, one file each: strategies by device and object speed, all with the same episodes."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.closed_loop.field.playback import AGGREGATES
from benchmarks.closed_loop.field.robots import AlignedPlayback, AsyncClient, ChunkBroker, EnsembleRobot, FieldRobot
from benchmarks.closed_loop.grid import DEVICES, PERIOD_S, SERIAL, SPEEDS, condition
from edgeflow.engine.control.offline import program_of
from edgeflow.engine.control.profile import PROFILES
from edgeflow.lab.demo.evaluation import TableCondition, load_policy, result_of, run_episodes
from edgeflow.lab.demo.lockstep import FRESH_SEEDS
from edgeflow.lab.demo.simulated.client_robot import ClientRobot
from edgeflow.lab.demo.simulated.robot import VirtualRobot
from edgeflow.lab.demo.simulated.service import RobotFactory, VirtualService
from edgeflow_client.types import Execution


@dataclass(frozen=True, slots=True)
class FieldStrategy:
    """A way to execute answers."""

    name: str
    robot: RobotFactory
    execution: Execution = Execution.FRESH
    """As in a session's Open; FRESH never continues a chunk."""


def _strategies() -> Iterator[FieldStrategy]:
    yield FieldStrategy("edgeflow, auto", ClientRobot, Execution.AUTO)
    name = "LeRobot async"
    for aggregate, new in AGGREGATES.items():
        yield FieldStrategy(f"{name}, {aggregate}, 0.5", partial(AsyncClient, new=new, threshold=0.5))
    weighted = partial(AsyncClient, new=AGGREGATES["weighted_average"])
    yield FieldStrategy(f"{name}, weighted_average, 0.7", partial(weighted, threshold=0.7))
    yield FieldStrategy(f"{name}, weighted_average, 0.5, no filter", partial(weighted, threshold=0.5, filters=False))
    yield FieldStrategy(f"{name}, weighted_average, 0.5, targets", partial(weighted, threshold=0.5, targets=True))
    yield FieldStrategy("LeRobot remote, aligned", partial(AlignedPlayback, blends=False))
    yield FieldStrategy("LeRobot remote, blended", partial(AlignedPlayback, blends=True))
    yield FieldStrategy("openpi broker", ChunkBroker)
    yield FieldStrategy("ACT ensemble", partial(EnsembleRobot, targets=False))
    yield FieldStrategy("ACT ensemble, targets", partial(EnsembleRobot, targets=True))


SHOWN: Final = ("p99", "max")
"""The figures of each distribution of jumps at seams."""
STRATEGIES: Final = tuple(_strategies())


@dataclass(frozen=True, slots=True)
class FieldCell:
    """A strategy on a device, at one speed of the objects in m/s."""

    strategy: FieldStrategy
    device: str
    speed: float
    policy: str
    """`demo-flow`, or a directory."""
    episodes: int

    @property
    def file(self) -> str:
        policy = self.policy if self.policy == Path(self.policy).name else Path(self.policy).resolve().as_posix()
        parts = (policy, self.device, f"{100 * self.speed:g}", self.strategy.name, f"{self.episodes}")
        return "-".join(re.sub(r"[^\w.]+", "_", part).strip("_") for part in parts) + ".json"

    @property
    def condition(self) -> TableCondition:
        return condition(SERIAL, self.speed, self.device)


def field_cells(policy: str, episodes: int) -> list[FieldCell]:
    """All cells; those of one device and speed follow each other."""
    grid = itertools.product(DEVICES, SPEEDS, STRATEGIES)
    return [FieldCell(strategy, device, speed, policy, episodes) for device, speed, strategy in grid]


def run_cell(index: int, policy: str, episodes: int, folder: Path) -> str:
    """Run a cell by its number and store its figures; return its line of the table. It runs in a pool's process."""
    cell = field_cells(policy, episodes)[index]
    row = cell_figures(cell)
    part = (folder / cell.file).with_suffix(".part")
    part.write_text(json.dumps(row))
    part.replace(folder / cell.file)
    return line(row)


def cell_figures(cell: FieldCell) -> dict[str, Any]:
    """Run the episodes of a cell; its figures as JSON values, null if unknown."""
    built = load_policy(cell.policy)
    times, robots, made = PROFILES[cell.device].times_of(program_of(built.engine)), [], cell.strategy.robot

    def make(*parts: Any) -> VirtualRobot:
        robots.append(made(*parts))
        return robots[-1]

    service = VirtualService(built.engine, built.limits, times, execution=cell.strategy.execution, robot=make)
    runs = list(run_episodes(service, cell.condition, range(FRESH_SEEDS, FRESH_SEEDS + cell.episodes), PERIOD_S))
    result = result_of(cell.condition, [runs], built.limits.stages, PERIOD_S).as_json()
    figures = (
        "profile", "speed_cm_s", "episodes", "successes", "interval_95", "seconds_per_success", "fps",
        "age_mean_ms", "age_p50_ms", "age_p99_ms",
    )  # fmt: skip
    return {
        "strategy": cell.strategy.name,
        **{name: result[name] for name in figures},
        "faulted": sum(isinstance(robot, FieldRobot) and robot.faulted for robot in robots),
        **{
            f"seam_{quantity}_{name}": each["seam"][name]
            for quantity, each in result["seams"].items()
            for name in SHOWN
        },
    }


def line(row: dict[str, Any]) -> str:
    """The line of the table for a cell."""
    names = ("age_p50_ms", "seam_position_mm_p99", "seam_velocity_m_s_p99", "seam_acceleration_m_s2_p99")
    age, position, velocity, acceleration = (math.nan if row[name] is None else row[name] for name in names)
    taken = "-" if row["seconds_per_success"] is None else f"{row['seconds_per_success']:.2f}"
    faulted = f", {row['faulted']} faulted" if row["faulted"] else ""
    return (
        f"{row['profile']:12} {row['speed_cm_s']:4g} cm/s  {row['strategy']:48} "
        f"{row['successes']:3} of {row['episodes']} {taken:>6} s {age:5.0f} ms  "
        f"seams {position:5.1f} mm {velocity:5.3f} m/s {acceleration:5.1f} m/s2{faulted}"
    )
