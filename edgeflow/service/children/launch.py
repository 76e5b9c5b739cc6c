"""The launch of a child, as its keeper sees it."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from edgeflow.ipc.packets import packet_pair
from edgeflow.service.host.roles import Role

KILL_WAIT_S = 1.0


class ChildProcess(Protocol):
    """A child process. pid: None where it is not a process, in tests."""

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
    """A started child: control's end of its socket, and the process."""

    sock: socket.socket
    process: ChildProcess


LaunchChild: TypeAlias = Callable[[Role], Awaitable[LaunchedChild]]  # OSError if that is impossible


@dataclass(frozen=True, slots=True)
class Pair:
    """Both ends of a process's socket, made before it is started."""

    ours: socket.socket
    theirs: socket.socket

    @classmethod
    def make(cls) -> Pair:
        return cls(*packet_pair())

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()
