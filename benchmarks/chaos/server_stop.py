"""Stops, kills or stalls the server, or the network before it, and measures the robot's side.

    .venv/bin/python -m benchmarks.chaos server-stop --trials 300 --json FILE

A trial is one robot that experiences one fault; several robots (the SDK, separate processes, 20 Hz) share a fault. Most
trials run against a server without a model, whose actions are valid for 100 ms; `--real` of them run against
`edgeflow serve` with the embedded policy, two robots at 5 Hz at a time. HOLD must come within 20 ms after the last
action's validity ends, and `latest`, called every 4 ms, must never return an action that is no longer valid.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.chaos.fake_server import Proxy, fake_server
from benchmarks.chaos.report import ScenarioReport, parser, progress
from benchmarks.chaos.robots import OVERCOMMIT, KillableProcess
from benchmarks.chaos.rules import BoundedFigure, spread
from benchmarks.chaos.sdk_robot import Fleet, RobotTotals
from benchmarks.chaos.service import ServiceUnderTest

HZ, POLL_S, VALID_MS = 20.0, 0.004, 100
REAL_HZ, REAL_ROBOTS = 5.0, 2  # what a small machine admits
BAR_MS = 20.0
LONG_STALL_S = 5.0
KINDS = ("stopped", "killed", "network stalled", "stalled 5 s")


@dataclass(slots=True)
class ServerStopTimes:
    """Raw measurements."""

    late_ms: dict[str, list[float]] = field(default_factory=dict)
    """From the end of the last action's validity to HOLD, by server and kind; negative = before it."""
    hold_ms: dict[str, list[float]] = field(default_factory=dict)
    summaries: list[RobotTotals] = field(default_factory=list)


def main() -> int:
    """Run the scenario; return the exit code."""
    made = parser(__doc__, 300)
    made.add_argument("--robots", type=int, default=5, help="that live through each fault")
    made.add_argument("--real", type=int, default=40, help="trials against the real service, of all")
    arguments = made.parse_args()
    report = ScenarioReport("server-stop", arguments)
    generator = random.Random(arguments.seed)
    measured = ServerStopTimes()
    with progress() as bar:
        faults = -(-(arguments.trials - arguments.real) // arguments.robots)
        turns = bar.track([KINDS[index % len(KINDS)] for index in range(faults)], description="server without model")
        _without_model(turns, arguments.robots, generator, measured)
        faults = -(-arguments.real // REAL_ROBOTS)
        kinds = [kind for kind in KINDS if kind != "killed"]
        planned = [kinds[index % len(kinds)] for index in range(faults - 1)] + ["killed"] * (faults > 0)
        if planned:
            _real(bar.track(planned, description="real service"), generator, measured)
    late_ms = [value for values in measured.late_ms.values() for value in values]
    rows = [
        BoundedFigure("trials", len(late_ms)),
        *[BoundedFigure(f"{name}: HOLD after validity, max of {len(values)}", max(values), "ms", BAR_MS)
          for name, values in measured.late_ms.items()],
        *spread("HOLD after the end of validity", late_ms, "ms", max=BAR_MS),
        BoundedFigure("times that `latest` was asked", sum(summary.asked for summary in measured.summaries)),
        BoundedFigure("actions given out past their validity", sum(each.overdue for each in measured.summaries), "", 0),
    ]  # fmt: skip
    return report.finish(rows, late_ms=measured.late_ms, fault_to_hold_ms=measured.hold_ms)


class _FaultedServer:
    """The server that faults are injected into. restart: only for one that may be killed and must come back."""

    def __init__(self, proxy: Proxy, pid: int, restart: Callable[[], int] | None = None) -> None:
        self._proxy, self._pid, self._restart = proxy, pid, restart

    def fail(self, kind: str) -> None:
        """Begin the fault."""
        if kind == "network stalled":
            self._proxy.stall()
        else:
            os.kill(self._pid, signal.SIGKILL if kind == "killed" else signal.SIGSTOP)

    def lift(self, kind: str) -> bool:
        """End the fault; False when that fails."""
        if kind == "network stalled":
            self._proxy.resume()
        elif kind != "killed":
            os.kill(self._pid, signal.SIGCONT)
        elif self._restart is None:
            return False
        else:
            self._pid = self._restart()
        return True


def _without_model(kinds: Iterable[str], robots: int, generator: random.Random, into: ServerStopTimes) -> None:
    with ExitStack() as stack, Proxy() as proxy:

        def start() -> int:
            process = stack.enter_context(KillableProcess(fake_server, VALID_MS))
            proxy.target = int(process.receive())  # type: ignore[call-overload]
            return int(process.process.pid or 0)

        server = _FaultedServer(proxy, start(), start)
        with Fleet(proxy.address, robots, HZ, POLL_S) as fleet:
            for kind in kinds:
                _one(server, fleet, kind, generator, into, "no model")
            into.summaries += fleet.finish()


def _real(kinds: Iterable[str], generator: random.Random, into: ServerStopTimes) -> None:
    with ServiceUnderTest({"max_sessions": 2 * REAL_ROBOTS, **OVERCOMMIT}) as service, Proxy() as proxy:
        proxy.target = int(service.address.rsplit(":", 1)[1])
        with Fleet(proxy.address, REAL_ROBOTS, REAL_HZ, POLL_S) as fleet:
            for kind in kinds:
                _one(_FaultedServer(proxy, service.pid), fleet, kind, generator, into, "real service")
            into.summaries += fleet.finish()


def _one(
    server: _FaultedServer, fleet: Fleet, kind: str, generator: random.Random, into: ServerStopTimes, name: str
) -> None:
    time.sleep(generator.uniform(0.2, 0.6))
    fleet.wait("act", time.monotonic_ns())
    at_ns = time.monotonic_ns()
    server.fail(kind)
    holds = fleet.wait("hold", at_ns)
    into.late_ms.setdefault(f"{name}, {kind}", []).extend(each.late_ns / 1e6 for each in holds)
    into.hold_ms.setdefault(f"{name}, {kind}", []).extend((each.at_ns - at_ns) / 1e6 for each in holds)
    time.sleep(LONG_STALL_S if kind == "stalled 5 s" else generator.uniform(0.1, 0.5))
    lifted_ns = time.monotonic_ns()
    if server.lift(kind):
        fleet.wait("act", lifted_ns)
