"""Stalls connections and processes, and measures the oldest frame that the SDK's robot acts on with its defaults.

    .venv/bin/python -m benchmarks.chaos stalls --trials 1000 --json FILE

A trial is one stall of one robot, 0.5 to 20 s long (log-uniform), in one or both directions of its connection; many
robots run at once, at 5 Hz, against a server without a model, half of them against one that sends no age limits. Robots
call `reset` as soon as that is needed. Other servers send their first action late, or every action. `--real` trials run
against `edgeflow serve` with the embedded policy: half of them are stalls of the network, the others stop the worker or
the front. An action may be handed out until its frame is as old as its limit; 50 ms are allowed for this machine.
Controls are the same robots with max_action_age_s=inf: they must be seen to act on old frames.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import chain
from multiprocessing.connection import wait

from benchmarks.chaos.fake_server import Manners, fake_server
from benchmarks.chaos.process_facts import alive
from benchmarks.chaos.report import ScenarioReport, parser, progress
from benchmarks.chaos.robots import OVERCOMMIT, KillableProcess
from benchmarks.chaos.rules import BoundedFigure
from benchmarks.chaos.service import MANY_CRASHES, ServiceUnderTest
from benchmarks.chaos.stalled_robots import (
    STALLED,
    StalledRobotRecord,
    StalledRobotsPlan,
    stalled_robots,
    watching_robots,
)

SHORTEST_S, LONGEST_S = 0.5, 20.0
BAR_MS = 50.0
VALID_MS, AGE_MS = 250, 100
LIMIT_MS = VALID_MS + AGE_MS
PER_PROCESS = 10
WATCH_S = 6.0
REAL_ROBOTS = 2
PATIENCE_S = 120.0
PROMPT = Manners(max_age_ms=LIMIT_MS, predicted_age_ms=AGE_MS)
LATE = {
    "first action 3 s late": Manners(LIMIT_MS, AGE_MS, first_late_s=3.0),
    "every action 0.3 s late": Manners(LIMIT_MS, AGE_MS, first_late_s=0.3, late_s=0.3),
    "every action 3 s late": Manners(LIMIT_MS, AGE_MS, first_late_s=3.0, late_s=3.0),
}
OLDER = Manners(predicted_age_ms=AGE_MS)
Seen = dict[str, list[StalledRobotRecord]]


def main() -> int:
    """Run the scenario; return the exit code."""
    made = parser(__doc__, 1000)
    made.add_argument("--robots", type=int, default=50, help="robots at once")
    made.add_argument("--real", type=int, default=40, help="trials against the real service, further ones")
    arguments = made.parse_args()
    report = ScenarioReport("stalls", arguments)
    generator = random.Random(arguments.seed)
    each = -(-arguments.trials // arguments.robots)
    lengths = [durations(each, generator) for _ in range(arguments.robots)]
    with progress() as bar:
        task = bar.add_task("server without model", total=each * arguments.robots)
        seen = _without_model(lengths, arguments.seed, lambda: bar.advance(task))
        task = bar.add_task("late servers and controls", total=None)
        late, controls = _late(arguments.seed, lambda: None)
        bar.update(task, total=1, completed=1)
        task = bar.add_task("real service", total=arguments.real)
        seen |= late | _real(arguments.real, generator, lambda robots: bar.advance(task, robots))
    rows = [BoundedFigure("stalls", sum(len(robot.stalls_s) for robots in seen.values() for robot in robots))]
    rows += [BoundedFigure("stalls after which a robot did not act again", _total(seen, "lost"), "", 0)]
    rows += [_oldest(name, robots) for name, robots in seen.items()]
    rows += [
        BoundedFigure("times that `latest` was asked", _total(seen, "asked")),
        BoundedFigure("actions given out beyond their limit", _total(seen, "beyond"), "", 0),
        BoundedFigure("actions that arrived too old", _total(seen, "too_old")),
        BoundedFigure(
            "controls that saw no old action", sum(_latest_ms(each) <= BAR_MS for each in controls.values()), "", 0
        ),
    ]
    rows += [
        BoundedFigure(f"control without a limit, {name}", _latest_ms(robots), "ms") for name, robots in controls.items()
    ]
    return report.finish(rows, robots=_samples(seen), controls=_samples(controls))


def durations(count: int, generator: random.Random) -> list[float]:
    """Lengths of stalls in seconds: log-uniform, one from each of `count` equally likely ranges, in random order."""
    shares = [(index + generator.random()) / count for index in range(count)]
    generator.shuffle(shares)
    return [SHORTEST_S * (LONGEST_S / SHORTEST_S) ** share for share in shares]


def _without_model(lengths: Sequence[Sequence[float]], seed: int, ended: Callable[[], object]) -> Seen:
    with ExitStack() as stack:
        ports = [_serve(stack, manners) for manners in (PROMPT, OLDER)]
        groups = [lengths[first : first + PER_PROCESS] for first in range(0, len(lengths), PER_PROCESS)]
        plans = [
            StalledRobotsPlan(stalls_s=group, seed=seed + index, limit_ms=LIMIT_MS)
            for index, group in enumerate(groups)
        ]
        work = [(ports[index % len(ports)], plan) for index, plan in enumerate(plans)]
        robots = _run(stack, work, ended)
    names = ("network stalled", "network stalled, no limits sent")
    shares = [list(chain.from_iterable(robots[index :: len(names)])) for index in range(len(names))]
    return {name: share for name, share in zip(names, shares, strict=True) if share}


def _late(seed: int, ended: Callable[[], object]) -> tuple[Seen, Seen]:
    """Robots of servers that are late; then the controls, robots without an age limit."""
    idle: list[list[float]] = [[]] * 5
    short = [[SHORTEST_S, 2 * SHORTEST_S, 3 * SHORTEST_S]] * 5
    with ExitStack() as stack:
        ports = [_serve(stack, manners) for manners in LATE.values()]
        judged = [StalledRobotsPlan(stalls_s=idle, seed=seed, limit_ms=LIMIT_MS, watch_s=WATCH_S) for _ in ports]
        freed = [
            StalledRobotsPlan(stalls_s=idle, seed=seed, limit_ms=LIMIT_MS, watch_s=WATCH_S, max_action_age_s=math.inf)
            for _ in ports
        ]
        stalled = StalledRobotsPlan(stalls_s=short, seed=seed, limit_ms=LIMIT_MS, max_action_age_s=math.inf)
        work = [*zip(ports * 2, judged + freed, strict=True), (_serve(stack, PROMPT), stalled)]
        robots = _run(stack, work, ended)
    names = [*LATE, "network stalled"]
    return dict(zip(LATE, robots, strict=False)), dict(zip(names, robots[len(LATE) :], strict=True))


def _real(count: int, generator: random.Random, ended: Callable[[int], object]) -> Seen:
    stalls = count // REAL_ROBOTS
    with ExitStack() as stack:
        if not stalls:
            return {}
        service = stack.enter_context(ServiceUnderTest({"max_sessions": 8, **OVERCOMMIT, **MANY_CRASHES}))
        port = service.port("grpc")
        network, faults = stalls - stalls // 2, stalls // 2
        lengths = [durations(network, generator) for _ in range(REAL_ROBOTS)]
        plan = StalledRobotsPlan(stalls_s=lengths, seed=generator.randrange(1 << 30), limit_ms=None)
        seen = {"real service, network stalled": _run(stack, [(port, plan)], lambda: ended(1))[0]}
        if faults:
            plan = StalledRobotsPlan(stalls_s=[[]] * REAL_ROBOTS, seed=0, limit_ms=None)
            robots = stack.enter_context(KillableProcess(watching_robots, port, plan))
            for index, seconds in enumerate(durations(faults, generator)):
                _stop(robots, service, seconds, worker=index % 2 == 0)
                ended(REAL_ROBOTS)
            found = robots.finish()
            found[0].stalls_s = [0.0] * faults * REAL_ROBOTS
            seen["real service, worker or front stopped"] = found
    return seen


def _stop(robots: KillableProcess, service: ServiceUnderTest, seconds: float, worker: bool) -> None:
    """Stop the worker or control for some seconds, while all robots act."""
    _wait_acting(robots)
    pid = service.worker() if worker else service.pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    if alive(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    _wait_acting(robots)


def _wait_acting(robots: KillableProcess) -> None:
    robots.link.send(time.monotonic_ns())
    robots.receive(PATIENCE_S)


def _serve(stack: ExitStack, manners: Manners) -> int:
    """Start a server without a model and return its port."""
    process = stack.enter_context(KillableProcess(fake_server, VALID_MS, manners))
    return int(process.receive())  # type: ignore[call-overload]


def _run(
    stack: ExitStack, work: Sequence[tuple[int, StalledRobotsPlan]], ended: Callable[[], object]
) -> list[list[StalledRobotRecord]]:
    """Run one process of robots per entry, all at once; returns what each one saw. ended: called after each stall."""
    processes = [stack.enter_context(KillableProcess(stalled_robots, port, plan)) for port, plan in work]
    links = {process.link: index for index, process in enumerate(processes)}
    found: dict[int, list[StalledRobotRecord]] = {}
    while len(found) < len(processes):
        open_links = [link for link, index in links.items() if index not in found]
        ready = wait(open_links, PATIENCE_S)
        if not ready:
            raise TimeoutError(f"no message from a robot for {PATIENCE_S:g} s")
        for link in ready:
            said = link.recv()  # type: ignore[union-attr]
            if said == STALLED:
                ended()
            else:
                found[links[link]] = said  # type: ignore[index]
    return [found[index] for index in range(len(processes))]


def _samples(seen: Seen) -> dict[str, list[dict[str, object]]]:
    """The records of all robots; late_ms is null if a robot did not act on any frame."""
    return {
        name: [{**asdict(robot), "late_ms": robot.late_ms if robot.acted else None} for robot in robots]
        for name, robots in seen.items()
    }


def _oldest(name: str, robots: Sequence[StalledRobotRecord]) -> BoundedFigure:
    if not any(robot.acted for robot in robots):
        return BoundedFigure(f"actions executed, {name}", 0, "", 0)
    return BoundedFigure(f"oldest frame acted on minus its limit, {name}", _latest_ms(robots), "ms", BAR_MS)


def _latest_ms(robots: Sequence[StalledRobotRecord]) -> float:
    return max(robot.late_ms for robot in robots)


def _total(seen: Seen, name: str) -> int:
    return sum(getattr(robot, name) for robots in seen.values() for robot in robots)
