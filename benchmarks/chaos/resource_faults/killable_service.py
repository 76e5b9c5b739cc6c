"""A service with a robot whose worker can be killed, and the comparison of two of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.chaos.report import progress
from benchmarks.chaos.robots import OVERCOMMIT
from benchmarks.chaos.rules import BoundedFigure, percentile
from benchmarks.chaos.sdk_robot import Fleet
from benchmarks.chaos.service import MANY_CRASHES, ServiceUnderTest, Surroundings

HZ, POLL_S = 20.0, 0.01
SLOWER = 1.2
EXIT_S = 15.0
STEADY_S = 0.5
CONFIG = {"max_sessions": 1, **OVERCOMMIT, **MANY_CRASHES}


@dataclass(slots=True, kw_only=True)
class FaultOptions:
    """Options of the run."""

    trials: int
    """Workers killed per case."""
    blocked_s: float
    limit: int
    samples: dict[str, object] = field(default_factory=dict)
    """Raw measurements, for the report."""


class KillableService:
    """A service with one robot that acts."""

    def __init__(self, around: Surroundings | None = None, probes: Sequence[str] = ()) -> None:
        self.service = ServiceUnderTest(CONFIG, probes, around)

    def __enter__(self) -> KillableService:
        with ExitStack() as stack:
            stack.enter_context(self.service)
            self.fleet = stack.enter_context(Fleet(self.service.address, 1, HZ, POLL_S))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def killed(self) -> float:
        """Seconds from the death of its worker, with one in reserve, until the robot acts again."""
        self.service.wait_idle_reserve()
        return self.killed_now()

    def killed_now(self) -> float:
        """The same, whether or not there is one in reserve."""
        self.steady()
        return self.killed_at_once()

    def killed_at_once(self) -> float:
        """The same, whether or not the robot acts."""
        at_ns = time.monotonic_ns()
        os.kill(self.service.worker(), signal.SIGKILL)
        return self.recovered(at_ns)

    def recovered(self, at_ns: int) -> float:
        """Seconds from this moment until the robot acts again after a HOLD."""
        held = self.fleet.wait("hold", at_ns)[0]
        return (self.fleet.wait("act", held.at_ns)[0].at_ns - at_ns) / 1e9

    def steady(self) -> None:
        """Wait until the robot acts."""
        time.sleep(STEADY_S)
        self.fleet.wait("act", time.monotonic_ns())

    def strange_holds(self, *expected: str) -> int:
        """HOLDs for other reasons than those expected."""
        return sum(reason not in expected for reason in self.fleet.reasons())

    def exit_code(self) -> float:
        """The exit code after SIGTERM with the robot still there; NaN if it does not end."""
        self.service.signal(signal.SIGTERM)
        code = self.service.wait_exit(EXIT_S)
        return float("nan") if code is None else abs(code)


def compared(
    setting: FaultOptions,
    name: str,
    faulty: KillableService,
    healthy: KillableService,
    before: Callable[[], None] = lambda: None,
) -> list[BoundedFigure]:
    """Kill the workers of both in turn, and compare; then stop the ill one. before: called before each trial."""
    took: dict[str, list[float]] = {"fault": [], "control": []}
    with progress() as bar:
        for _ in bar.track(range(setting.trials), description=name):
            before()
            for kind, killable, other in (("control", healthy, faulty), ("fault", faulty, healthy)):
                other.service.wait_idle_reserve()  # the loading of one must not slow the other
                took[kind].append(killable.killed())
    setting.samples[name] = took
    control, usual = percentile(took["control"], 50), healthy.strange_holds("WORKER_LOST")
    return [
        BoundedFigure("workers killed", len(took["fault"])),
        BoundedFigure("acting again in the control, median", control, "s"),
        BoundedFigure("acting again, median", percentile(took["fault"], 50), "s", SLOWER * control),
        BoundedFigure("HOLDs other than WORKER_LOST in the control", usual),
        BoundedFigure("HOLDs other than WORKER_LOST", faulty.strange_holds("WORKER_LOST"), "", usual),
        BoundedFigure("exit code after SIGTERM", faulty.exit_code(), "", 0),
    ]
