"""Launching of child processes, and what they inherit."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias


class ChildProcess(Protocol):
    """A child process, as its keeper sees it."""

    def kill(self) -> None: ...

    async def wait(self, timeout_s: float) -> str | None:
        """Wait for its end; returns how it ended, or None if it still runs after the timeout."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchedChild:
    """A started child: control's end of its socket, and the process."""

    sock: socket.socket
    process: ChildProcess


LaunchChild: TypeAlias = Callable[[], LaunchedChild]
