"""Kills control, the front process: the worker must exit by itself.

    .venv/bin/python -m benchmarks.chaos front-kill --trials 20 --json FILE

One robot acts at 10 Hz. Half of the kills come while the worker serves, half while a second worker is still starting
because the first one was killed just before.
"""

from __future__ import annotations

import os
import random
import signal
import time

from benchmarks.chaos.process_facts import alive, children, wait_for
from benchmarks.chaos.report import ScenarioReport, parser, progress
from benchmarks.chaos.robots import OVERCOMMIT, RawRobot
from benchmarks.chaos.rules import BoundedFigure, spread
from benchmarks.chaos.service import ServiceUnderTest

BAR_S, GIVE_UP_S, HZ = 2.0, 20.0, 10.0
CONFIG = {"max_sessions": 1, **OVERCOMMIT}


def main() -> int:
    """Run the scenario; return the exit code."""
    arguments = parser(__doc__, 20).parse_args()
    report = ScenarioReport("front-kill", arguments)
    generator = random.Random(arguments.seed)
    with progress() as bar:
        turns = bar.track(range(arguments.trials), description="fronts killed")
        gone_s = [_one(generator, starting=index % 2 == 1) for index in turns]
    found = [each for each in gone_s if each is not None]
    rows = [
        BoundedFigure("fronts killed", len(gone_s)),
        BoundedFigure(f"workers still there after {GIVE_UP_S:g} s", len(gone_s) - len(found), "", 0),
        *spread("front killed to worker gone", found, "s", max=BAR_S),
    ]
    return report.finish(rows, gone_s=gone_s)


def _one(generator: random.Random, starting: bool) -> float | None:
    """Seconds until no worker is left; None when one remains."""
    with ServiceUnderTest(CONFIG) as service:
        robot = RawRobot(service.address, HZ)
        robot.wait_opened()
        robot.acted.wait()
        workers = {service.worker()}
        if starting:
            os.kill(service.worker(), signal.SIGKILL)
        time.sleep(generator.uniform(0.1, 1.0))
        workers.update(children(service.pid))  # including the one in reserve
        service.signal(signal.SIGKILL)
        gone_s = wait_for(lambda: not any(alive(pid) for pid in workers), GIVE_UP_S)
        for pid in filter(alive, workers):
            os.kill(pid, signal.SIGKILL)
        robot.leave()
    return gone_s
