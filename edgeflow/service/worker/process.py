"""Starting and ending the worker process, with descriptors made before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Protocol, TypeAlias

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import PassTimes
from edgeflow.ipc.bounded import is_stopped
from edgeflow.ipc.packets import packet_pair
from edgeflow.service.host.resources import set_scheduling
from edgeflow.service.host.spawn import SpawnedProcess, spawn

ENTRY = "edgeflow.worker.start"
KILL_WAIT_S = 5.0
STACKS_SIGNAL = signal.SIGUSR1  # the same as in ipc/parent_death.py
STACKS_S = 0.3
STACKS_QUIET_S = 0.05
STACKS_POLL_S = 0.01
STACKS_BYTES = 64 << 10
STACKS_LINES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConnections:
    """Both ends of all connections between control and a worker."""

    sock: socket.socket
    """The socket for messages."""
    worker_sock: socket.socket
    handover: socket.socket
    """The socket over which the worker receives sockets to chat fronts."""
    worker_handover: socket.socket
    stacks: int
    """The pipe for the stacks of its threads if it hangs or crashes."""
    worker_stacks: int

    @classmethod
    def make(cls) -> WorkerConnections:
        """Create them; OSError without descriptors or memory, with nothing left open."""
        with contextlib.ExitStack() as undo:
            sock, worker_sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.callback(sock.close)
            undo.callback(worker_sock.close)
            handover, worker_handover = packet_pair()
            undo.callback(handover.close)
            undo.callback(worker_handover.close)
            stacks, worker_stacks = os.pipe()
            undo.pop_all()
        os.set_blocking(stacks, False)
        return cls(
            sock=sock,
            worker_sock=worker_sock,
            handover=handover,
            worker_handover=worker_handover,
            stacks=stacks,
            worker_stacks=worker_stacks,
        )

    def inherited(self) -> tuple[int, int, int]:
        """The worker's descriptors: messages, handover, stacks."""
        return self.worker_sock.fileno(), self.worker_handover.fileno(), self.worker_stacks

    def close_inherited(self) -> None:
        """Close the worker's ends here."""
        self.worker_sock.close()
        self.worker_handover.close()
        os.close(self.worker_stacks)

    def close(self) -> None:
        """Close both ends of all."""
        self.close_inherited()
        self.sock.close()
        self.handover.close()
        os.close(self.stacks)


class Process(Protocol):
    """The supervisor's view of a worker process."""

    def kill(self) -> None: ...

    async def wait(self, timeout_s: float) -> str | None:
        """Wait for its end; returns how it ended, or None if it still runs after the timeout."""
        ...

    async def stacks(self) -> list[str]:
        """The stacks of its threads, now or when it crashed: functions, files and lines."""
        ...


@dataclass(frozen=True, slots=True)
class Launched:
    """A started worker: control's end of its socket, the process, and warnings about settings not permitted."""

    sock: socket.socket
    process: Process
    warnings: tuple[str, ...] = ()
    handover: socket.socket | None = None
    """The socket over which the worker receives sockets to chat fronts; None without chat."""
    reserve: bool = False
    """The worker was in reserve."""


Launch: TypeAlias = Callable[[], Launched]


class WorkerProcess:
    """A worker in a child process. It dies with the thread that starts it."""

    def __init__(self, process: SpawnedProcess, stacks: int) -> None:
        self.pid = process.pid
        self._process = process
        self._stacks = stacks
        self._open = True
        self._last_stacks: list[str] = []

    def kill(self) -> None:
        """SIGKILL; the device's driver cleans up."""
        self._process.kill()

    async def wait(self, timeout_s: float) -> str | None:
        """Wait for its end; returns how it ended, or None if it still runs after the timeout."""
        ended = await self._process.wait(timeout_s)
        if ended is not None and self._open:
            self._open = False
            self._last_stacks = await self._read_stacks()
            os.close(self._stacks)
        return ended

    async def stacks(self) -> list[str]:
        """The stacks of its threads, now or when it crashed: functions, files and lines."""
        if not self._open:
            return self._last_stacks
        if is_stopped(self.pid):
            return ["the process is stopped by a signal: no stacks"]
        self._process.send_signal(STACKS_SIGNAL)
        return await self._read_stacks()

    async def _read_stacks(self) -> list[str]:
        """Read the pipe until no more output follows."""
        output, patience_s = b"", STACKS_S
        while len(output) < STACKS_BYTES and patience_s > 0:
            try:
                more = os.read(self._stacks, STACKS_BYTES)
            except BlockingIOError:
                await asyncio.sleep(STACKS_POLL_S)
                patience_s -= STACKS_POLL_S
                continue
            if not more:
                break
            output, patience_s = output + more, STACKS_QUIET_S
        return output.decode(errors="replace").splitlines()[:STACKS_LINES]


def cold_arguments(known: PassTimes | None) -> list[str]:
    """The arguments of a worker that starts at once."""
    return ["--pass-times", *map(str, astuple(known))] if known is not None else []


def start_process(
    connections: WorkerConnections, settings: int, entry: str, arguments: Sequence[str], passes: int | None = None
) -> WorkerProcess:
    """Start a worker with its ends of the connections, which are then closed here; OSError leaves all of them open.

    settings: the descriptor of the resolved configuration, sealed. passes: the descriptor of the ring in which it
    records its passes.
    """
    sock, handover, stacks = connections.inherited()
    recorded = [] if passes is None else [passes]
    process = spawn(
        entry,
        (sock, handover, stacks, settings, *recorded),
        [
            *(each for fd in recorded for each in ("--passes", str(fd))),
            *("--parent", str(os.getpid()), "--fd", str(sock), "--handover", str(handover)),
            *("--stacks", str(stacks), "--config", f"/dev/fd/{settings}", *arguments),
        ],
    )
    connections.close_inherited()
    return WorkerProcess(process, connections.stacks)


def launched(
    config: ServiceConfig, connections: WorkerConnections, process: WorkerProcess, *, reserve: bool = False
) -> Launched:
    """A started worker, with its CPUs and priority set."""
    wanted = config.realtime
    warnings = set_scheduling("worker", process.pid, wanted.worker_cpus, wanted.worker_priority)
    return Launched(connections.sock, process, tuple(warnings), connections.handover, reserve)
