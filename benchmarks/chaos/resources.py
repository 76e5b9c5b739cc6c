"""Faults of the machine's resources: outputs, descriptors, processes, suspended processes, the wall clock.

    .venv/bin/python -m benchmarks.chaos resources [--only closed-pipe,clock] [--blocked-s 300] [--json FILE]

Every case runs a service with one robot at 20 Hz (the SDK in a process) and kills its worker, or suspends a process.
Times until the robot acts again are compared with those of a control service without the fault, whose worker is killed
in turn with the other's, or with a cold start of a worker.

full-disk, closed-pipe, blocked-pipe: standard error cannot be written; in blocked-pipe neither can standard output, for
--blocked-s seconds. descriptors: the service may have 48, and strangers' idle sockets take what they can. processes: no
process can be started for some seconds (as root through an ordinary user: the limit does not apply to root).
suspended: SIGSTOP of worker, reserve, starting worker, gateway, chat front, fork server and control. clock: the wall
clock of all processes jumps by a day, to and fro, every second.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.chaos.report import ScenarioReport, parser
from benchmarks.chaos.resource_faults.descriptors import descriptors
from benchmarks.chaos.resource_faults.killable_service import FaultOptions, KillableService, compared
from benchmarks.chaos.resource_faults.outputs import blocked_pipe, closed_pipe, full_disk
from benchmarks.chaos.resource_faults.processes import processes
from benchmarks.chaos.resource_faults.suspended import suspended
from benchmarks.chaos.rules import BoundedFigure
from benchmarks.chaos.service import Surroundings

QUIET_S = 10.0
DAY_S = 24 * 3600
JUMPS = """
import time
DAY_NS = 24 * 3600 * 10**9
true_ns = time.time_ns
def jumping_ns():
    return true_ns() + (0, DAY_NS, 2 * DAY_NS, -DAY_NS)[int(time.monotonic()) % 4]
time.time_ns = jumping_ns
time.time = lambda: jumping_ns() / 1e9
"""


def clock(setting: FaultOptions) -> list[BoundedFigure]:
    """The robot acts as if nothing happened, and a killed worker is replaced as quickly.

    The machine's clock is not set: other programs need it. `time.time` jumps in each Python process instead, by a
    `sitecustomize` module on its path, which a process loads before anything else. Times that libraries in C take of
    themselves do not jump.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(JUMPS)
        paths = [folder, os.environ.get("PYTHONPATH", "")]
        around = Surroundings(environment={"PYTHONPATH": os.pathsep.join(filter(None, paths))})
        with KillableService() as healthy, KillableService(around) as faulty:
            time.sleep(QUIET_S)
            usual, noticed = (len(killable.fleet.reasons()) for killable in (healthy, faulty))
            rows = compared(setting, "clock", faulty, healthy)
            days = len({round(each["time"] / DAY_S) for each in faulty.service.events("state")})
    return [
        BoundedFigure("days that the log saw", days),
        BoundedFigure(f"HOLDs in {QUIET_S:g} s of jumps", noticed, "", usual),
        *rows,
    ]


CASES: dict[str, Callable[[FaultOptions], list[BoundedFigure]]] = {
    "full-disk": full_disk,
    "closed-pipe": closed_pipe,
    "blocked-pipe": blocked_pipe,
    "descriptors": descriptors,
    "processes": processes,
    "suspended": suspended,
    "clock": clock,
}


def main() -> int:
    """Run the chosen cases; return the exit code."""
    made = parser(__doc__, 3)
    made.add_argument("--only", default=",".join(CASES), help="cases, separated by commas")
    made.add_argument("--blocked-s", type=float, default=300.0, help="how long nobody reads the outputs")
    made.add_argument("--limit", type=int, default=48, help="descriptors of the service")
    arguments = made.parse_args()
    names = arguments.only.split(",")
    if unknown := [name for name in names if name not in CASES]:
        made.error(f"--only: no case {unknown[0]!r}; there are {', '.join(CASES)}")
    report = ScenarioReport("resources", arguments)
    setting = FaultOptions(trials=arguments.trials, blocked_s=arguments.blocked_s, limit=arguments.limit)
    rows = [replace(row, what=f"{name}: {row.what}") for name in names for row in CASES[name](setting)]
    return report.finish(rows, **setting.samples)
