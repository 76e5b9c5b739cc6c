"""The embedded flow policy in closed loop: success by execution, on five devices and at four speeds of the objects.

    .venv/bin/python -m benchmarks.closed_loop.executions --json FILE [--part 1/2]

Fresh episodes in simulated time, the same in every cell, with the scheduler, the engine and the SDK's session that
serve. 200 episodes in the cells with targets and 50 elsewhere: an hour of two cores. Each finished cell is added to
FILE, and cells that it has are skipped, so an interrupted run goes on. Two processes may share FILE as `--part 1/2` and
`--part 2/2`. At the end the targets are printed and written. `python -m benchmarks.pictures FILE` draws the picture.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.closed_loop.grid import DEVICES, PERIOD_S, condition
from benchmarks.command import keep, machine_facts, options
from edgeflow.contract import PassTimes
from edgeflow.engine.control.offline import program_of
from edgeflow.engine.control.profile import PROFILES
from edgeflow.lab.commands.options import EMBEDDED_POLICIES
from edgeflow.lab.demo.evaluation import load_policy, result_of, run_episodes
from edgeflow.lab.demo.lockstep import FRESH_SEEDS
from edgeflow.lab.demo.simulated.service import VirtualService
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow.scheduler.pace import auto_pace
from edgeflow.worker.build import BuiltEngine
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import Execution

SPEEDS_CM_S: Final = (0.0, 2.5, 5.0, 10.0)
COMPARED: Final = (Execution.AUTO, Execution.CONTINUE, Execution.REST)
FRESH_SPEEDS: Final = (0.0, 5.0)
"""Speeds at which FRESH is measured, too."""
JUMP_CM: Final = 4.0
"""The jump of still objects in the cells that measure reactions."""
EPISODES, TARGET_EPISODES = 50, 200
SUCCESS: Final = {
    ("orin", 0.0): 98,
    ("orin", 2.5): 97,
    ("orin", 5.0): 90,
    ("orin-smolvla", 0.0): 99,
    ("orin-smolvla", 5.0): 95,
    ("orin-pi05", 0.0): 100,
    ("orin-pi05", 5.0): 99,
    ("orin-pi05", 10.0): 95,
    ("rtx5090", 5.0): 99,
    ("rtx5090", 10.0): 97,
}
"""The least success of `auto` in per cent, by device and speed of the objects in cm/s."""
STILL_SECONDS: Final = 2.2
"""The most seconds per success of `auto`: orin, still objects."""
BELOW_MANY, BELOW_FEW = 6, 3
"""Episodes by which `auto` may be below the best fixed execution: of TARGET_EPISODES, and of fewer."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExecutionCell:
    """One condition: a device, a speed and a jump of the objects, and an execution."""

    profile: str
    speed_cm_s: float
    execution: Execution
    jump_cm: float = 0.0

    @property
    def has_target(self) -> bool:
        """Its device and speed are in the table of targets."""
        return not self.jump_cm and (self.profile, self.speed_cm_s) in SUCCESS

    @property
    def name(self) -> str:
        jump = f":jump{self.jump_cm:g}" if self.jump_cm else ""
        return f"{self.profile}:{self.speed_cm_s:g}:{self.execution.value}{jump}"


def execution_cells() -> list[ExecutionCell]:
    """All cells, those with targets first."""
    every = [ExecutionCell(*each) for each in _combinations()]
    every += [ExecutionCell(profile, 0.0, execution, JUMP_CM) for profile in DEVICES for execution in COMPARED]
    return sorted(every, key=lambda cell: not cell.has_target)


def _combinations() -> Iterator[tuple[str, float, Execution]]:
    for speed in SPEEDS_CM_S:
        executions = (*COMPARED, Execution.FRESH) if speed in FRESH_SPEEDS else COMPARED
        for profile in DEVICES:
            yield from ((profile, speed, execution) for execution in executions)


def main() -> None:
    """Run the cells that the file lacks, then judge all that it has."""
    arguments = _arguments()
    path: Path = arguments.json
    index, parts = arguments.part
    mine = [cell for cell in execution_cells() if re.search(arguments.cells, cell.name)][index - 1 :: parts]
    built = load_policy(arguments.policy)
    for cell in mine:
        if cell.name in {row["cell"] for row in _stored(path)["conditions"]}:
            continue
        row = run_cell(built, cell, arguments.episodes or (TARGET_EPISODES if cell.has_target else EPISODES))
        with _shared(path) as report:
            report["model"] = arguments.policy
            report["conditions"].append(row)
        print(f"{cell.name}: {row['successes']} of {row['episodes']}", flush=True)
    with _shared(path) as report:
        report["targets"] = execution_targets(report["conditions"])
    for each in report["targets"]:
        verdict = "met" if each["met"] else "MISSED"
        print(f"{each['cell']}, {each['figure']}: {each['measured']:.4g}, {each['target']}: {verdict}")


def run_cell(built: BuiltEngine, cell: ExecutionCell, episodes: int) -> Row:
    """The figures of a cell, as a JSON value."""
    program = program_of(built.engine)
    pace, times = auto_pace(program), PROFILES[cell.profile].times_of(program)
    jump_m = cell.jump_cm / 100
    wanted = condition(pace, cell.speed_cm_s / 100, cell.profile, execution=cell.execution, jump_m=jump_m)
    service = VirtualService(built.engine, built.limits, times, execution=cell.execution)
    runs = list(run_episodes(service, wanted, range(FRESH_SEEDS, FRESH_SEEDS + episodes), PERIOD_S))
    result = result_of(wanted, [runs], built.limits.stages, PERIOD_S)
    return {
        "cell": cell.name,
        "chunk_ms": _chunk_ms(times, program.passes),
        **result.as_json(),
        "failed_episodes": _failed_episodes([run.outcome for run in runs]),
        "commit": machine_facts()["commit"],
    }


def _failed_episodes(outcomes: Sequence[EpisodeOutcome]) -> dict[str, list[int]]:
    """The numbers of the episodes without success, by outcome: the same number is the same episode in every cell."""
    return {
        outcome.value: [number for number, found in enumerate(outcomes) if found is outcome]
        for outcome in EpisodeOutcome
        if outcome is not EpisodeOutcome.SUCCESS and outcome in outcomes
    }


def execution_targets(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each target of the cells that were measured: cell, figure, measured value, target, and whether it is met."""
    moving = [row for row in rows if not row["jump_cm"]]
    autos = [row for row in moving if row["execution"] == "auto"]
    judged = [each for auto in autos for each in _of_cell(auto, [row for row in moving if _same_cell(row, auto)])]
    return [
        {"cell": auto["cell"], "figure": figure, "measured": value, "target": target, "met": met}
        for auto, figure, value, target, met in judged
    ]


def _of_cell(auto: Row, same: Sequence[Row]) -> Iterator[tuple[Row, str, float, str, bool]]:
    """same: the rows of all executions there."""
    place = (auto["profile"], auto["speed_cm_s"])
    if (least := SUCCESS.get(place)) is not None:
        success = 100 * auto["success"]
        yield auto, "success, %", success, f"at least {least}", success >= least
    if place == ("orin", 0.0):
        seconds = auto["seconds_per_success"]
        met = seconds is not None and seconds <= STILL_SECONDS
        yield auto, "seconds per success", float("nan") if seconds is None else seconds, f"at most {STILL_SECONDS}", met
    if auto["profile"] == "rtx5090":
        held = auto["held_ticks_per_minute"]
        yield auto, "held ticks per minute", held, "0", held == 0
    fixed = [row["successes"] for row in same if row is not auto and row["episodes"] == auto["episodes"]]
    if fixed:
        below, most = max(fixed) - auto["successes"], BELOW_MANY if auto["episodes"] >= TARGET_EPISODES else BELOW_FEW
        yield auto, "episodes below the best fixed execution", below, f"at most {most}", below <= most


def _same_cell(row: Row, other: Row) -> bool:
    return (row["profile"], row["speed_cm_s"]) == (other["profile"], other["speed_cm_s"])


def _chunk_ms(times: PassTimes, passes: int) -> float:
    """Time of an answer by itself."""
    return (times.prefill_ns + (passes - 1) * times.decode_ns) / 1e6


def _stored(path: Path) -> dict[str, Any]:
    """The report so far."""
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    return {**machine_facts(), "frame_hz": 1 / PERIOD_S, "conditions": []}


@contextmanager
def _shared(path: Path) -> Iterator[dict[str, Any]]:
    """The report, to be changed while no other process changes it; it is written as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        report = _stored(path)
        yield report
        order = {cell.name: place for place, cell in enumerate(execution_cells())}
        report["conditions"].sort(key=lambda row: order.get(row["cell"], len(order)))
        part = path.with_suffix(".part")
        keep(part, report)
        part.replace(path)
    finally:
        os.close(folder)


def _part(text: str) -> tuple[int, int]:
    """`1/2`: the first of two parts."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    index, parts = map(int, found.groups()) if found else (0, 0)
    if not 1 <= index <= parts:
        raise ConfigError(f"part: must be such as 1/2, got {text!r}")
    return index, parts


def _arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, help="per cell, to try it out")
    parser.add_argument("--cells", default="", help="a regular expression for names, such as orin:5:auto")
    parser.add_argument("--part", type=_part, default=(1, 1), help="which part of the cells, such as 1/2")
    parser.add_argument("--policy", default=EMBEDDED_POLICIES["flow"], help="directory of another flow policy")
    arguments = parser.parse_args(given)
    if arguments.json is None:
        parser.error("--json: give the result file")
    return arguments


if __name__ == "__main__":
    main()
