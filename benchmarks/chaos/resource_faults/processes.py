"""A machine on which no process can be started for some seconds."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.chaos.process_facts import wait_for
from benchmarks.chaos.resource_faults.killable_service import SLOWER, FaultOptions, KillableService
from benchmarks.chaos.rules import BoundedFigure, percentile
from benchmarks.chaos.service import START_S, Surroundings

LACKING_S = 3.0
LONGEST_PAUSE_S = 3.2  # while the supervisor waits between two attempts for this long (0.2 s, doubled each time)
NOBODY = 65534
CAPABILITIES = "+dac_override,+dac_read_search"  # the files may be root's
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", f"--inh-caps=-all,{CAPABILITIES}")


def processes(setting: FaultOptions) -> list[BoundedFigure]:
    """The worker is killed with one in reserve, which takes over, and again: then a process is needed."""
    with_reserve, without = [], []
    root = os.geteuid() == 0
    around = Surroundings(under=[*AS_NOBODY, f"--ambient-caps={CAPABILITIES}", "--"] if root else [])
    with KillableService(around) as killable:
        cold_s = killable.service.cold_start_s()
        for _ in range(setting.trials):
            killable.service.wait_idle_reserve()
            killable.steady()
            with _no_processes(killable.service.pid):
                with_reserve.append(killable.killed_at_once())
                at_ns = time.monotonic_ns()
                os.kill(killable.service.worker(), signal.SIGKILL)
                killable.fleet.wait("hold", at_ns)
                time.sleep(LACKING_S)
            lifted_ns = time.monotonic_ns()
            without.append((killable.fleet.wait("act", lifted_ns)[0].at_ns - lifted_ns) / 1e9)
        back = wait_for(lambda: killable.service.reserve() is not None, START_S, 0.05)
        strange = killable.strange_holds("WORKER_LOST")
        code = killable.exit_code()
    setting.samples["processes"] = {"with_reserve_s": with_reserve, "without_s": without, "cold_s": cold_s}
    return [
        BoundedFigure("workers killed", 2 * len(without)),
        BoundedFigure("cold start of a worker", cold_s, "s"),
        BoundedFigure("acting again with the reserve, median", percentile(with_reserve, 50), "s", SLOWER * cold_s),
        BoundedFigure(
            "acting again once processes can be started, median",
            percentile(without, 50),
            "s",
            LONGEST_PAUSE_S + SLOWER * cold_s,
        ),
        BoundedFigure("reserves missing at the end", float(back is None), "", 0),
        BoundedFigure("HOLDs other than WORKER_LOST", strange, "", 0),
        BoundedFigure("exit code after SIGTERM", code, "", 0),
    ]


@contextmanager
def _no_processes(pid: int) -> Iterator[None]:
    """Let every fork and thread of a process fail with EAGAIN."""
    hard = _hard_limit(pid)
    _limit(pid, "1")
    try:
        yield
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):  # it is gone
            _limit(pid, hard)


def _limit(pid: int, soft: str) -> None:
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": ()} if os.geteuid() == 0 else {}
    subprocess.run(["prlimit", f"--pid={pid}", f"--nproc={soft}:"], check=True, capture_output=True, **user)


def _hard_limit(pid: int) -> str:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line for line in lines if line.startswith("Max processes")).split()[3]
