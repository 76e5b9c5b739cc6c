"""Starting the worker process, and ending it."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from edgeflow.config import ServiceConfig

KILL_WAIT_S = 5.0


class Process(Protocol):
    """A worker as its supervisor sees it."""

    def kill(self) -> None: ...

    async def wait(self, timeout_s: float) -> str | None:
        """How it ended, or None when it still runs after the timeout."""
        ...


@dataclass(frozen=True, slots=True)
class Launched:
    """A worker that was started: our end of its socket, and the process."""

    sock: socket.socket
    process: Process


Launch: TypeAlias = Callable[[], Launched]


class WorkerProcess:
    """A child process. It must be started from a thread that outlives it: it dies with that thread."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen

    @property
    def pid(self) -> int:
        return self._popen.pid

    def kill(self) -> None:
        """SIGKILL; the device's driver cleans up."""
        if self._popen.poll() is None:
            self._popen.kill()

    async def wait(self, timeout_s: float) -> str | None:
        """How it ended, or None when it still runs after the timeout."""
        try:
            code = await asyncio.to_thread(self._popen.wait, timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _worker_code() -> str:
    """Imports come from where ours come from: `-m` would look into the present directory first."""
    return f"import sys; sys.path[:] = {sys.path!r}; from edgeflow.engine.main import run; run()"


def launch_worker(config: ServiceConfig) -> Launched:
    """Start edgeflow.engine.main with one end of a socket pair and the resolved configuration."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs, tempfile.TemporaryFile() as file:
        file.write(config.model_dump_json().encode())
        file.flush()
        file.seek(0)
        command = [sys.executable, "-c", _worker_code()]
        command += ["--fd", str(theirs.fileno()), "--config", f"/dev/fd/{file.fileno()}"]
        popen = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(), file.fileno()),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a signal to our process group is ours to handle
        )
    return Launched(ours, WorkerProcess(popen))
