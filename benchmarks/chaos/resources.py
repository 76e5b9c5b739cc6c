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

from collections.abc import Callable

from benchmarks.chaos.report import Report, parser
from benchmarks.chaos.resource_faults.clock import clock
from benchmarks.chaos.resource_faults.descriptors import descriptors
from benchmarks.chaos.resource_faults.outputs import blocked_pipe, closed_pipe, full_disk
from benchmarks.chaos.resource_faults.patient import Setting
from benchmarks.chaos.resource_faults.processes import processes
from benchmarks.chaos.resource_faults.suspended import suspended
from benchmarks.chaos.rules import Row

CASES: dict[str, Callable[[Setting], list[Row]]] = {
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
    report = Report("resources", arguments)
    setting = Setting(trials=arguments.trials, blocked_s=arguments.blocked_s, limit=arguments.limit)
    rows = [row for name in names for row in _titled(name, CASES[name](setting))]
    return report.finish(rows, **setting.samples)


def _titled(name: str, rows: list[Row]) -> list[Row]:
    return [Row(f"{name}: {row.what}", row.value, row.unit, row.bar) for row in rows]
