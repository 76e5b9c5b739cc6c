"""A long run with everybody at once: polite robots beside cheats, chat clients and strangers.

    .venv/bin/python -m benchmarks.chaos mixed --minutes 60 --json FILE

Two polite robots act at 10 Hz with the SDK. After a quiet block come, for the rest of the time, two robots that send
ten times what they declared and begin episodes all the time, four chat clients, 100 slow sockets on both ports, and
large bodies from eight connections; all on this machine, at nice 10 but for the slow sockets. The verdict: rate and age
of the polite robots beside those of the quiet block, their HOLDs, growth of every process by the rules of the soak
test, processes that were replaced, and descriptors once the guests are gone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace

from benchmarks.chaos.attacks import slow_sockets
from benchmarks.chaos.bodies_attack import body_senders
from benchmarks.chaos.interference import QUIET, Bars, Spans, holds, sdk_track, undisturbed, verdict
from benchmarks.chaos.mixed_guests import cheats, talkers
from benchmarks.chaos.process_facts import held, wait_for
from benchmarks.chaos.report import ScenarioReport, progress
from benchmarks.chaos.robots import OVERCOMMIT, KillableProcess
from benchmarks.chaos.rules import BoundedFigure, growth
from benchmarks.chaos.service import ServiceUnderTest
from benchmarks.chaos.soak import Sample, answered, process_rows, sample
from benchmarks.command import options

POLITE, HZ = 2, 10.0
CHEATS, TALKERS, SOCKETS, CONNECTIONS = 2, 4, 100, 4
STRANGERS = ("127.0.0.2",)  # connections are counted per address
MIXED = "everybody"
QUIET_SHARE, LONGEST_QUIET_S = 0.2, 60.0
SAMPLES, FASTEST_S = 400, 0.2
SETTLE_S, PATIENCE_S = 30.0, 120.0
BARS = Bars(least_share=0.98, rise_percent=20)
CONFIG = {"max_sessions": POLITE + CHEATS, **OVERCOMMIT}


class ResourceWatch:
    """Memory and descriptors of all processes of a service, over the frames answered."""

    def __init__(self, service: ServiceUnderTest) -> None:
        self._service = service
        self._began = time.monotonic()
        self._first = answered(service)
        self._pids = processes(service)
        self.series: dict[str, list[Sample]] = {name: [] for name in self._pids}
        self.replaced = 0

    def sample(self) -> None:
        """Take one sample of each process; a replaced process is counted, and its series starts again."""
        elapsed_s, frames = time.monotonic() - self._began, answered(self._service) - self._first
        for name, pid in processes(self._service).items():
            if pid != self._pids.get(name):
                self.replaced += 1
                self._pids[name], self.series[name] = pid, []
            self.series[name].append(sample(pid, elapsed_s, frames))

    def rows(self) -> list[BoundedFigure]:
        """Growth of each process; NaN, which meets no target, if there are too few samples."""
        found: list[BoundedFigure] = []
        for name, each in self.series.items():
            try:
                grown = growth([one.frames for one in each], [one.resident for one in each])
            except ValueError:
                found.append(BoundedFigure(f"{name}: growth", float("nan"), "", 0))
            else:
                found += process_rows(name, grown, each, judged=True)
        return [replace(row, bar=None) if "descriptors" in row.what else row for row in found]  # guests come and go


def main() -> int:
    """Run the scenario; return the exit code."""
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    arguments = parser.parse_args()
    report, spans = ScenarioReport("mixed", arguments), Spans()
    quiet_s = min(QUIET_SHARE * 60 * arguments.minutes, LONGEST_QUIET_S)
    with ServiceUnderTest(CONFIG) as service, ExitStack() as stack:
        robots = [stack.enter_context(KillableProcess(sdk_track, service.address, HZ)) for _ in range(POLITE)]
        for robot in robots:
            robot.receive(PATIENCE_S)
        spans.wait(QUIET, quiet_s)
        before = descriptors(service)
        did, watch = _beside_guests(service, spans, 60 * arguments.minutes - quiet_s)
        wait_for(lambda: not _more(before, descriptors(service)), SETTLE_S, 0.2)
        left = _more(before, descriptors(service))
        tracks = [robot.finish() for robot in robots]
    polite = holds(tracks, spans.all, MIXED)
    rows = [
        *undisturbed("polite robots", tracks, spans.all),
        *verdict("polite robots", tracks, spans.all, MIXED, BARS),
        BoundedFigure("HOLDs of polite robots, quiet", len(holds(tracks, spans.all, QUIET))),
        BoundedFigure(f"HOLDs of polite robots beside {MIXED}", len(polite), "", 0),
        BoundedFigure("processes replaced", watch.replaced, "", 0),
        BoundedFigure("descriptors more, once the guests are gone", left, "", 0),
        *watch.rows(),
    ]
    samples = {name: [asdict(each) for each in series] for name, series in watch.series.items()}
    return report.finish(rows, holds=polite, guests=did, **samples)


def processes(service: ServiceUnderTest) -> dict[str, int]:
    """Process ids of the service by name; the reserve is left out, since it comes and goes."""
    found = {"control": service.pid, "worker": service.worker()}
    found |= {role: pid for role in ("gateway", "chat") if (pid := service.child(role)) is not None}
    return found


def descriptors(service: ServiceUnderTest) -> dict[str, int]:
    """Open descriptors by process."""
    return {name: held(pid).descriptors for name, pid in processes(service).items()}


def _beside_guests(service: ServiceUnderTest, spans: Spans, seconds: float) -> tuple[dict[str, object], ResourceWatch]:
    """Let the guests in, watch for this time, and send them away; return the guests' reports."""
    grpc_port, http_port = service.port("grpc"), service.port("http")
    with ExitStack() as stack:
        guests = {
            "cheats": KillableProcess(cheats, service.address, CHEATS),
            "talkers": KillableProcess(talkers, http_port, TALKERS),
            "slow sockets closed per second": KillableProcess(slow_sockets, grpc_port, http_port, SOCKETS),
            "keys": KillableProcess(body_senders, http_port, "1.4 MB of keys", STRANGERS, CONNECTIONS),
            "parts": KillableProcess(body_senders, http_port, "empty parts", STRANGERS, CONNECTIONS),
        }
        for guest in guests.values():
            stack.enter_context(guest)
            guest.receive()
        watch = ResourceWatch(service)
        every_s, began = max(seconds / SAMPLES, FASTEST_S), time.monotonic()
        with progress() as bar, spans.during(MIXED):
            task = bar.add_task(MIXED, total=seconds)
            while (elapsed_s := time.monotonic() - began) < seconds:
                time.sleep(every_s)
                watch.sample()
                bar.update(task, completed=elapsed_s)
        for guest in guests.values():
            guest.link.send("stop")
        return {name: _summary(guest.receive(PATIENCE_S)) for name, guest in guests.items()}, watch


def _summary(report: object) -> object:
    return {str(key): value for key, value in report.items()} if isinstance(report, Mapping) else report


def _more(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """The most that a process has more than before."""
    return max(0, *(after.get(name, 0) - count for name, count in before.items()))
