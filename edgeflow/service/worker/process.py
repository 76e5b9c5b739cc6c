"""Starting and ending the worker process."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from edgeflow.config import ServiceConfig
from edgeflow.ipc.packets import packet_pair
from edgeflow.service.host.realtime import settle
from edgeflow.types import PassTimes

ENTRY = "edgeflow.engine.start"
KILL_WAIT_S = 5.0
STACKS_SIGNAL = signal.SIGUSR1  # the same as in ipc/leash.py
STACKS_S = 0.3
STACKS_QUIET_S = 0.05
STACKS_BYTES = 64 << 10
STACKS_LINES = 200


class Process(Protocol):
    """A worker process, as its supervisor sees it."""

    def kill(self) -> None: ...

    async def wait(self, timeout_s: float) -> str | None:
        """Wait for its end; returns how it ended, or None if it still runs after the timeout."""
        ...

    async def stacks(self) -> list[str]:
        """The stacks of its threads, now or when it crashed: functions, files and lines."""
        ...


@dataclass(frozen=True, slots=True)
class Launched:
    """A started worker: the front's end of its socket, the process, and warnings about settings not permitted.

    handover: where the worker expects sockets to the chat front; None without chat.
    """

    sock: socket.socket
    process: Process
    warnings: tuple[str, ...] = ()
    handover: socket.socket | None = None


Launch: TypeAlias = Callable[[], Launched]


class WorkerProcess:
    """A worker in a child process. Start it from a thread that outlives it, since it dies with that thread."""

    def __init__(self, popen: subprocess.Popen[bytes], stacks: int, handover: socket.socket) -> None:
        self.handover = handover
        self._popen = popen
        self._stacks = os.fdopen(stacks, "rb", buffering=0)
        self._last_stacks: list[str] = []

    @property
    def pid(self) -> int:
        return self._popen.pid

    def kill(self) -> None:
        """SIGKILL; the device's driver cleans up."""
        if self._popen.poll() is None:
            self._popen.kill()

    async def wait(self, timeout_s: float) -> str | None:
        """Wait for its end; returns how it ended, or None if it still runs after the timeout."""
        try:
            code = await asyncio.to_thread(self._popen.wait, timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self.handover.close()
        if not self._stacks.closed:
            self._last_stacks = await asyncio.to_thread(self._read_stacks)
            self._stacks.close()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    async def stacks(self) -> list[str]:
        """The stacks of its threads, now or when it crashed: functions, files and lines."""
        if self._stacks.closed:
            return self._last_stacks
        if _is_stopped(self._popen.pid):
            return ["the process is stopped by a signal: no stacks"]
        self._popen.send_signal(STACKS_SIGNAL)
        return await asyncio.to_thread(self._read_stacks)

    def _read_stacks(self) -> list[str]:
        """Read the pipe until nothing more follows."""
        output, patience_s = b"", STACKS_S
        while len(output) < STACKS_BYTES and select.select([self._stacks], [], [], patience_s)[0]:
            if not (more := self._stacks.read(STACKS_BYTES)):
                break
            output, patience_s = output + more, STACKS_QUIET_S
        return output.decode(errors="replace").splitlines()[:STACKS_LINES]


def _is_stopped(pid: int) -> bool:
    """True if the process is stopped by a signal (where /proc exists)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _worker_code(entry: str) -> str:
    """The code of the child, which imports from the same paths; `-m` would search the current directory first."""
    return f"import sys; sys.path[:] = {sys.path!r}; from {entry} import run; run()"


def launch_worker(config: ServiceConfig, entry: str = ENTRY, known: PassTimes | None = None) -> Launched:
    """Launch a worker that starts at once. known: pass times measured by an earlier worker."""
    arguments = ["--pass-times", *map(str, astuple(known))] if known is not None else []
    sock, process = start_process(config, entry, arguments)
    wanted = config.realtime
    warnings = settle("worker", process.pid, wanted.worker_cpus, wanted.worker_priority)
    return Launched(sock, process, tuple(warnings), process.handover)


def start_process(
    config: ServiceConfig, entry: str = ENTRY, arguments: Sequence[str] = ()
) -> tuple[socket.socket, WorkerProcess]:
    """Start `run` of a module with one end of a socket pair and the resolved configuration.

    Returns the other end and the process.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    stacks, worker_stacks = os.pipe()
    handover, worker_handover = packet_pair()
    with theirs, worker_handover, os.fdopen(worker_stacks, "wb"), tempfile.TemporaryFile() as file:
        file.write(config.model_dump_json().encode())
        file.flush()
        file.seek(0)
        command = [sys.executable, "-c", _worker_code(entry), "--parent", str(os.getpid())]
        command += ["--fd", str(theirs.fileno()), "--stacks", str(worker_stacks)]
        command += ["--handover", str(worker_handover.fileno())]
        command += ["--config", f"/dev/fd/{file.fileno()}", *arguments]
        popen = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(), worker_stacks, worker_handover.fileno(), file.fileno()),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a signal to our process group is ours to handle
        )
    return ours, WorkerProcess(popen, stacks, handover)
