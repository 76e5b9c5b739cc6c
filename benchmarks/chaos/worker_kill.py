"""The worker killed, and stopped, under four robots.

    .venv/bin/python -m benchmarks.chaos worker-kill --trials 50 --json benchmarks/results/chaos-worker-kill.json

Robots are the SDK in processes of their own, at 10 Hz. Noticed: the service's log says that it is degraded. Acting
again: every robot got an action after its HOLD; compared with the start of a worker of the same service on the same
machine, from its process's birth to ready, three times before the first kill. Stopped workers (SIGSTOP) must be
noticed by their lack of progress.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait

from benchmarks.chaos.proc import started_at
from benchmarks.chaos.report import Report, parser, progress
from benchmarks.chaos.robots import OVERCOMMIT, RobotProcess
from benchmarks.chaos.rules import Row, percentile, spread
from benchmarks.chaos.sdk_robot import Change, Summary, sdk_robot
from benchmarks.chaos.service import ServiceUnderTest, crash_budget

ROBOTS, HZ = 4, 10.0
POLL_S = 0.02  # robots that ask more often take processor time from the worker that starts
COLD_STARTS = 3
RECOVERY_S = 120.0
CONFIG = {"max_sessions": ROBOTS, **OVERCOMMIT}


@dataclass(slots=True)
class Measured:
    """One entry a trial, of hold_ms one a robot and trial."""

    noticed_ms: list[float] = field(default_factory=list)
    hold_ms: list[float] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)
    acting_s: list[float] = field(default_factory=list)


class Fleet:
    """The robots and what each does now, by what they say."""

    def __init__(self, address: str) -> None:
        self.robots = [RobotProcess(sdk_robot, address, HZ, POLL_S) for _ in range(ROBOTS)]
        self._now: dict[int, Change] = {}

    def __enter__(self) -> Fleet:
        self.wait("act", 0)
        return self

    def __exit__(self, *_: object) -> None:
        for robot in self.robots:
            robot.close()

    def wait(self, command: str, since_ns: int) -> list[int]:
        """Since when each robot does this, at least once it does so after `since_ns`; TimeoutError."""
        deadline = time.monotonic() + RECOVERY_S
        found: dict[int, int] = {}
        while True:
            for index, now in self._now.items():
                if now.command == command:
                    found.setdefault(index, max(now.at_ns, since_ns))
            if len(found) == len(self.robots):
                return list(found.values())
            self._hear(deadline)

    def finish(self) -> list[Summary]:
        """End all robots."""
        for robot in self.robots:
            robot.link.send("stop")
        return [self._summary(robot) for robot in self.robots]

    def _hear(self, deadline: float) -> None:
        links = {robot.link: index for index, robot in enumerate(self.robots)}
        ready = wait(list(links), max(deadline - time.monotonic(), 0))
        if not ready:
            raise TimeoutError(f"the robots did not get there within {RECOVERY_S:g} s")
        for link in ready:
            self._now[links[link]] = link.recv()  # type: ignore[index, union-attr, arg-type]

    @staticmethod
    def _summary(robot: RobotProcess) -> Summary:
        while not isinstance(said := robot.hear(), Summary):
            pass
        return said


def main() -> int:
    """The exit code."""
    made = parser(__doc__, 50)
    made.add_argument("--stops", type=int, default=5, help="workers stopped, after those killed")
    arguments = made.parse_args()
    report = Report("worker-kill", arguments)
    generator = random.Random(arguments.seed)
    cold_s = [_cold_start() for _ in range(COLD_STARTS)]
    killed, stopped = Measured(), Measured()
    with ServiceUnderTest(crash_budget(CONFIG)) as service, Fleet(service.address) as fleet:
        plan = [signal.SIGKILL] * arguments.trials + [signal.SIGSTOP] * arguments.stops
        with progress() as bar:
            for number in bar.track(plan, description="workers killed or stopped"):
                _one(service, fleet, generator, number, killed if number is signal.SIGKILL else stopped)
        summaries = fleet.finish()
    lost = sum(summary.reconnects > 0 or len(summary.sessions) != 1 for summary in summaries)
    cold = percentile(cold_s, 50)
    rows = [
        Row("workers killed", len(killed.noticed_ms)),
        *spread("kill to noticed", killed.noticed_ms, "ms", max=100),
        *spread("kill to HOLD at a robot", killed.hold_ms, "ms", max=200),
        Row("start of a worker, median", cold, "s"),
        Row("kill to worker ready, p50", percentile(killed.ready_s, 50), "s"),
        *spread("kill to all robots acting", killed.acting_s, "s", p99=1.2 * cold),
        Row("sessions lost", lost, "", 0),
    ]
    if stopped.noticed_ms:
        rows.append(Row("workers stopped", len(stopped.noticed_ms)))
        rows += spread("stop to noticed", stopped.noticed_ms, "ms", max=2500)
    return report.finish(rows, cold_start_s=cold_s, killed=asdict(killed), stopped=asdict(stopped))


def _cold_start() -> float:
    with ServiceUnderTest(CONFIG) as service:
        return service.wait_event("worker_ready", 0.0, 1.0) - started_at(service.worker())


def _one(
    service: ServiceUnderTest, fleet: Fleet, generator: random.Random, number: signal.Signals, into: Measured
) -> None:
    time.sleep(generator.uniform(0.5, 1.5))
    fleet.wait("act", 0)
    worker = service.worker()
    at, at_ns = time.time(), time.monotonic_ns()
    os.kill(worker, number)
    holds = fleet.wait("hold", at_ns)
    acts = fleet.wait("act", max(holds))
    noticed = service.wait_event("state", at, 10.0, state="degraded")
    into.noticed_ms.append((noticed - at) * 1e3)
    into.hold_ms += [(hold_ns - at_ns) / 1e6 for hold_ns in holds]
    into.ready_s.append(service.wait_event("worker_ready", noticed, 1.0) - at)
    into.acting_s.append((max(acts) - at_ns) / 1e9)
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)
