"""Launching of child processes, and what they inherit."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from edgeflow.config import ServiceConfig
from edgeflow.ipc.packets import packet_pair
from edgeflow.ipc.sealed import seal
from edgeflow.service.host.held import Held
from edgeflow.service.host.spawn import spawn
from edgeflow.service.observe.log import EventLog

ENTRY = "edgeflow.service.children.start"


class ChildProcess(Protocol):
    """A child process, as its keeper sees it. pid: None where it is not a process, in tests."""

    @property
    def pid(self) -> int | None: ...

    def kill(self) -> None: ...

    async def wait(self, timeout_s: float) -> str | None:
        """Wait for its end; returns how it ended, or None if it still runs after the timeout."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchedChild:
    """A started child: control's end of its socket, and the process."""

    sock: socket.socket
    process: ChildProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A child's name, the socket it serves, where the chat front is ("" without chat), and its memory limit."""

    name: str
    listener: socket.socket
    chat_path: str
    memory_mb: int


LaunchChild: TypeAlias = Callable[[], LaunchedChild]


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
    """Launches the processes of a role; what a start needs is held in advance. Use it on the loop."""

    def __init__(self, config: ServiceConfig, role: Role, log: EventLog) -> None:
        self._role = role
        self._settings = seal(config.model_dump_json().encode())
        self._next = Held(f"{role.name} process", _Pair.make, log)

    def launch(self) -> LaunchedChild:
        """Start a process, which inherits its listening socket and the configuration; OSError if that is impossible."""
        role, pair = self._role, self._next.take()
        inherited = (pair.theirs.fileno(), role.listener.fileno(), self._settings)
        arguments = ["--role", role.name, "--parent", str(os.getpid()), "--fd", str(pair.theirs.fileno())]
        arguments += ["--listener", str(role.listener.fileno()), "--config", f"/dev/fd/{self._settings}"]
        arguments += ["--chat-path", role.chat_path, "--memory-mb", str(role.memory_mb)]
        try:
            process = spawn(ENTRY, inherited, arguments)
        except OSError:
            self._next.put_back(pair)
            raise
        pair.theirs.close()
        self._next.fill()
        return LaunchedChild(pair.ours, process)

    def close(self) -> None:
        """Give up what is held; idempotent."""
        self._next.close()
        if self._settings >= 0:
            os.close(self._settings)
            self._settings = -1
