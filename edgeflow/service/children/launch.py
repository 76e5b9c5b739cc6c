"""Launching of child processes, and what they inherit."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from dataclasses import dataclass, replace
from typing import Protocol

from edgeflow.config import ServiceConfig
from edgeflow.ipc.packets import packet_pair
from edgeflow.ipc.sealed import seal
from edgeflow.service.host.held import Held
from edgeflow.service.host.spawn import spawn
from edgeflow.service.observe.log import EventLog

ENTRY = "edgeflow.service.children.start"
KILL_WAIT_S = 5.0


class ChildProcess(Protocol):
    """A child process, as its keeper sees it. pid: None where it is not a process, in tests."""

    @property
    def pid(self) -> int | None: ...

    @property
    def ended(self) -> str | None:
        """How it ended; None while it runs."""
        ...

    def kill(self) -> None: ...

    async def wait(self, timeout_s: float) -> str | None:
        """Wait for its end; returns how it ended, or None if it still runs after the timeout."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchedChild:
    """A started child: control's end of its socket, and the process. spare: its modules are loaded already."""

    sock: socket.socket
    process: ChildProcess
    spare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A child's name, the socket it serves, where the chat front is ("" without chat), and its memory limit."""

    name: str
    listener: socket.socket
    chat_path: str
    memory_mb: int


class Launcher(Protocol):
    """Launches the children of one role, one after another. Use it on the loop."""

    def launch(self) -> LaunchedChild:
        """Launch a child; OSError if that is impossible."""
        ...

    def prepare(self) -> None:
        """Have a spare at hand, if configured."""
        ...

    async def close(self) -> None:
        """Give up what is held; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class _Pair:
    """Both ends of a child's socket, made before the child is started."""

    ours: socket.socket
    theirs: socket.socket

    @classmethod
    def make(cls) -> _Pair:
        return cls(*packet_pair())

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


class ChildLauncher:
    """Launches the processes of a role; what a start needs is held in advance. Use it on the loop.

    A spare is a child that has loaded everything and waits for its first message from control, so that a lost child is
    replaced at once. It beats into a socket that nobody reads.
    """

    def __init__(self, config: ServiceConfig, role: Role, log: EventLog) -> None:
        self._role = role
        self._wants_spare = config.standby
        self._every_cpu = bool(config.realtime.front_cpus)  # which this process has when a child starts
        self._settings = seal(config.model_dump_json().encode())
        self._next = Held(f"{role.name} process", _Pair.make, log)
        self._spare: LaunchedChild | None = None

    def launch(self) -> LaunchedChild:
        """The spare if it has loaded, else a new process; OSError if that is impossible."""
        spare = self._spare
        if spare is not None and spare.process.ended is not None:
            spare.sock.close()
            spare = self._spare = None
        if spare is None or not _has_loaded(spare.sock):
            return self._start()
        self._spare = None
        return replace(spare, spare=True)

    def prepare(self) -> None:
        """Start a spare if configured; what fails is tried again the next time."""
        if self._wants_spare and self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = self._start("--spare")

    async def close(self) -> None:
        """End the spare, and give up what is held; idempotent."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.process.kill()
            await spare.process.wait(KILL_WAIT_S)
            spare.sock.close()
        self._next.close()
        if self._settings >= 0:
            os.close(self._settings)
            self._settings = -1

    def _start(self, *options: str) -> LaunchedChild:
        """Start a process, which inherits its listening socket and the configuration."""
        role, pair = self._role, self._next.take()
        inherited = (pair.theirs.fileno(), role.listener.fileno(), self._settings)
        arguments = ["--role", role.name, "--parent", str(os.getpid()), "--fd", str(pair.theirs.fileno())]
        arguments += ["--listener", str(role.listener.fileno()), "--config", f"/dev/fd/{self._settings}"]
        arguments += ["--chat-path", role.chat_path, "--memory-mb", str(role.memory_mb)]
        arguments += ["--every-cpu"] if self._every_cpu else []
        arguments += options
        try:
            process = spawn(ENTRY, inherited, arguments)
        except OSError:
            self._next.put_back(pair)
            raise
        pair.theirs.close()
        self._next.fill()
        return LaunchedChild(pair.ours, process)


def _has_loaded(sock: socket.socket) -> bool:
    """True if a spare has sent its beat."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
