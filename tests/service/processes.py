"""Worker and front processes of tests: who they are, and that they are gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

from edgeflow.config.service import ServiceConfig
from edgeflow.ipc.packets import seal
from edgeflow.service.worker.process import Launched, WorkerConnections, WorkerProcess, launched, start_process

ENTRY = "tests.service.process_worker"


def launch_worker(settings: ServiceConfig, entry: str) -> Launched:
    """Launch a single worker, with nothing held in advance."""
    connections, sealed = WorkerConnections.make(), seal(settings.model_dump_json().encode())
    try:
        return launched(settings, connections, start_process(connections, sealed, entry, []))
    finally:
        os.close(sealed)


class ProcessLauncher:
    """Starts worker processes and remembers them."""

    def __init__(self, settings: ServiceConfig, entry: str = ENTRY) -> None:
        self.pids: list[int] = []
        self._settings = settings
        self._entry = entry

    def launch(self) -> Launched:
        made = launch_worker(self._settings, self._entry)
        assert isinstance(made.process, WorkerProcess)
        self.pids.append(made.process.pid)
        return made


def state(pid: int) -> str:
    """The kernel's letter for the state of a process: T = stopped, Z = ended; X once it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def runs(pid: int) -> bool:
    """A process that ended and was not waited for by its parent runs no more."""
    return state(pid) not in "ZX"


def until_gone(pid: int, limit_s: float = 30.0) -> None:
    """Wait until a process has ended."""
    deadline = time.monotonic() + limit_s
    while runs(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """The processes that a process started; none once it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def forked(pid: int, name: str) -> int | None:
    """A service's process of this name, started by its fork server; None while there is none."""
    found = (child for server in children(pid) for child in children(server))
    return next((child for child in found if comm(child) == name and runs(child)), None)


def comm(pid: int) -> str:
    """The name of a process; "" once it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def workers(pid: int) -> list[int]:
    """The worker processes that a process started.

    Left out until its own program runs: a child has its parent's command line before that.
    """
    parent = command(pid)
    return [child for child in children(pid) if ENTRY in (line := command(child)) and line != parent]


def command(pid: int) -> str:
    """The command line of a process; "" once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Newborn:
    """Children that this process has since; others (compilers, servers of other tests) are left out."""

    def __init__(self) -> None:
        self._before = set(children(os.getpid()))

    def __call__(self) -> list[int]:
        """In the order of their birth."""
        return [pid for pid in children(os.getpid()) if pid not in self._before]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
