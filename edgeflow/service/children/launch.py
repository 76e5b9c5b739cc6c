"""Launching of child processes, and what they inherit."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from edgeflow.config import ServiceConfig
from edgeflow.ipc.packets import packet_pair

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


class _Spawned:
    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen

    @property
    def pid(self) -> int | None:
        return self._popen.pid

    def kill(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()

    async def wait(self, timeout_s: float) -> str | None:
        try:
            code = await asyncio.to_thread(self._popen.wait, timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def launches(config: ServiceConfig, role: Role) -> LaunchChild:
    """The way to launch a child of this role as a process."""
    return lambda: _launch(config, role)


def _launch(config: ServiceConfig, role: Role) -> LaunchedChild:
    """Launch a child process, which inherits its listening socket and the configuration."""
    ours, theirs = packet_pair()
    with theirs, tempfile.TemporaryFile() as file:
        file.write(config.model_dump_json().encode())
        file.flush()
        file.seek(0)
        code = f"import sys; sys.path[:] = {sys.path!r}; from {ENTRY} import run; run()"
        command = [sys.executable, "-c", code, "--role", role.name, "--parent", str(os.getpid())]
        command += [
            "--fd",
            str(theirs.fileno()),
            "--listener",
            str(role.listener.fileno()),
            "--chat-path",
            role.chat_path,
        ]
        command += ["--config", f"/dev/fd/{file.fileno()}", "--memory-mb", str(role.memory_mb)]
        popen = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(), role.listener.fileno(), file.fileno()),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    return LaunchedChild(ours, _Spawned(popen))
