"""Kills, and stops, the worker under four robots.

    .venv/bin/python -m benchmarks.chaos worker-kill --trials 50 --json FILE

Robots are the SDK in separate processes, at 10 Hz. Noticed: the service's log says that it is degraded. Acting again:
every robot received an action after its HOLD; this is compared with cold starts of a worker of the same service on the
same machine, from the process's start to ready, three times before the first kill. Workers are killed when another is
in reserve, and some more right after that one took over, with none in reserve. Stopped workers (SIGSTOP) must be
noticed by their lack of progress.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import asdict, dataclass, field

from benchmarks.chaos.report import ScenarioReport, parser, progress
from benchmarks.chaos.robots import OVERCOMMIT
from benchmarks.chaos.rules import BoundedFigure, percentile, spread
from benchmarks.chaos.sdk_robot import Fleet
from benchmarks.chaos.service import MANY_CRASHES, ServiceUnderTest

ROBOTS, HZ = 4, 10.0
POLL_S = 0.02  # robots that ask more often take processor time from the worker that starts
COLD_STARTS = 3
RECOVERY_S = 120.0
CONFIG = {"max_sessions": ROBOTS, **OVERCOMMIT}


@dataclass(slots=True)
class WorkerKillTimes:
    """Raw measurements: one entry per trial, for hold_ms one per robot and trial."""

    noticed_ms: list[float] = field(default_factory=list)
    hold_ms: list[float] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)
    acting_s: list[float] = field(default_factory=list)


def main() -> int:
    """Run the scenario; return the exit code."""
    made = parser(__doc__, 50)
    made.add_argument("--again", type=int, default=10, help="workers killed with none in reserve, after the others")
    made.add_argument("--stops", type=int, default=5, help="workers stopped, after those killed")
    arguments = made.parse_args()
    report = ScenarioReport("worker-kill", arguments)
    generator = random.Random(arguments.seed)
    cold_s = []
    for _ in range(COLD_STARTS):
        with ServiceUnderTest(CONFIG) as service:
            cold_s.append(service.cold_start_s())
    killed, again, stopped = WorkerKillTimes(), WorkerKillTimes(), WorkerKillTimes()
    with ServiceUnderTest(CONFIG | MANY_CRASHES) as service, Fleet(service.address, ROBOTS, HZ, POLL_S) as fleet:
        plan = [killed] * arguments.trials + [again] * arguments.again + [stopped] * arguments.stops
        with progress() as bar:
            for into in bar.track(plan, description="workers killed or stopped"):
                if into is not again:
                    service.wait_reserve()
                _one(service, fleet, generator, signal.SIGSTOP if into is stopped else signal.SIGKILL, into)
        summaries = fleet.finish()
    lost = sum(summary.reconnects > 0 or len(summary.sessions) != 1 for summary in summaries)
    cold = percentile(cold_s, 50)
    rows = [
        BoundedFigure("workers killed", len(killed.noticed_ms)),
        *spread("kill to noticed", killed.noticed_ms, "ms", max=100),
        *spread("kill to HOLD at a robot", killed.hold_ms, "ms", max=200),
        BoundedFigure("start of a worker, median", cold, "s"),
        BoundedFigure("kill to worker ready, p50", percentile(killed.ready_s, 50), "s"),
        *spread("kill to all robots acting", killed.acting_s, "s", p99=1.2 * cold),
        BoundedFigure("sessions lost", lost, "", 0),
    ]
    if again.noticed_ms:
        rows.append(BoundedFigure("workers killed again, none in reserve", len(again.noticed_ms)))
        rows += spread("kill to all robots acting", again.acting_s, "s", p99=1.2 * cold)
    if stopped.noticed_ms:
        rows.append(BoundedFigure("workers stopped", len(stopped.noticed_ms)))
        rows += spread("stop to noticed", stopped.noticed_ms, "ms", max=2500)
    return report.finish(rows, cold_start_s=cold_s, killed=asdict(killed), again=asdict(again), stopped=asdict(stopped))


def _one(
    service: ServiceUnderTest, fleet: Fleet, generator: random.Random, number: signal.Signals, into: WorkerKillTimes
) -> None:
    time.sleep(generator.uniform(0.5, 1.5))
    fleet.wait("act", time.monotonic_ns())
    worker = service.worker()
    at, at_ns = time.time(), time.monotonic_ns()
    os.kill(worker, number)
    holds = fleet.wait("hold", at_ns)
    noticed = service.wait_event("state", at, RECOVERY_S, state="degraded")
    ready = service.wait_event("worker_ready", noticed, RECOVERY_S)
    acts = fleet.wait("act", at_ns + round((ready - at) * 1e9))
    into.noticed_ms.append((noticed - at) * 1e3)
    into.hold_ms += [max(hold.at_ns - at_ns, 0) / 1e6 for hold in holds]
    into.ready_s.append(ready - at)
    into.acting_s.append((max(act.at_ns for act in acts) - at_ns) / 1e9)
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)
