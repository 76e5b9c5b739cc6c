"""The launch of a child: its role, its socket to control, and the socket that it serves, which control binds."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from edgeflow.config.service import ServiceConfig
from edgeflow.service.children.start import CHAT, GATEWAY, ROBOTS
from edgeflow.service.host.listen import BACKLOG, RECEIVE_BYTES, bind
from edgeflow.service.host.spawn import ChildProcess
from edgeflow_client.errors import AddressError

KILL_WAIT_S = 1.0
ROBOTS_RECEIVE_BYTES = 1 << 20  # for two raw images to arrive without a pause; there are few robots
PREFIX = "edgeflow-"
SOCKET = "chat"
YOUNG_S = 60.0  # a younger folder may belong to a service that does not listen yet


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRole:
    """A child's name, its listening socket, the chat front's path ("" without chat), and its memory limit."""

    name: str
    listener: socket.socket
    chat_path: str
    memory_mb: int


@dataclass(frozen=True, slots=True)
class LaunchedChild:
    """A started child: control's end of its socket, and the process."""

    sock: socket.socket
    process: ChildProcess


LaunchChild: TypeAlias = Callable[[ChildRole], Awaitable[LaunchedChild]]  # OSError if that is impossible


@dataclass(frozen=True, slots=True)
class SocketPair:
    """Both ends of a process's socket, made before it is started."""

    ours: socket.socket
    theirs: socket.socket

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def make_private_folder() -> Path:
    """A new folder that only this user may enter; abandoned ones are removed. OSError if it cannot be created."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with contextlib.suppress(OSError):
        for other in folder.parent.glob(f"{PREFIX}*"):
            _remove_abandoned(other)
    return folder


def _remove_abandoned(folder: Path) -> None:
    """Remove a folder of this user that contains only a socket on which no process listens."""
    with contextlib.suppress(OSError):
        status = folder.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        if not ours or time.time() - status.st_mtime < YOUNG_S:
            return
        if os.listdir(folder) == [SOCKET] and _is_abandoned(folder / SOCKET):  # noqa: PTH208 - only names
            (folder / SOCKET).unlink()
            folder.rmdir()


def _is_abandoned(path: Path) -> bool:
    """True for a socket on which no process listens, in any container."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


class Listeners:
    """Listening sockets, from construction to `close`. A child that restarts finds its callers in the backlog."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        self._folder: Path | None = None
        self._open: list[socket.socket] = []
        try:
            self.http = self._bind("http.port", config.http.host, config.http.port)
            self.http_port: int = self.http.getsockname()[1]
            self.robots = self._bind(
                "frontends.port", config.frontends.host, config.frontends.port, receive_bytes=ROBOTS_RECEIVE_BYTES
            )
            self.robots_port: int = self.robots.getsockname()[1]
            self.health = self._bind("health.port", config.health.host, config.health.port)
            self._chat = self._bind_chat() if config.chat_path is not None else None
        except BaseException:
            self.close()
            raise

    def roles(self) -> list[ChildRole]:
        """The children and what they serve."""
        limits = self._config.limits
        path = str(self._chat.getsockname()) if self._chat is not None else ""
        found = [
            ChildRole(name=GATEWAY, listener=self.http, chat_path=path, memory_mb=limits.gateway_memory_mb),
            ChildRole(name=ROBOTS, listener=self.robots, chat_path="", memory_mb=limits.robots_memory_mb),
        ]
        if self._chat is not None:
            found.append(ChildRole(name=CHAT, listener=self._chat, chat_path=path, memory_mb=limits.chat_memory_mb))
        return found

    def close(self) -> None:
        """Close all sockets; idempotent."""
        for each in self._open:
            each.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _bind(self, key: str, host: str, port: int, receive_bytes: int = RECEIVE_BYTES) -> socket.socket:
        sock = bind(key, host, port, receive_bytes)
        self._open.append(sock)
        return sock

    def _bind_chat(self) -> socket.socket:
        """The chat front's socket, in a folder that only this user may enter; the gateway connects to it."""
        try:
            self._folder = make_private_folder()
        except OSError as error:
            raise AddressError(
                f"chat: no folder for its socket: {error.strerror}: set TMPDIR to a folder that can be written to"
            ) from None
        path = self._folder / SOCKET
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._open.append(sock)
            sock.bind(str(path))
            sock.listen(BACKLOG)
        except OSError as error:
            raise AddressError(f"chat: cannot listen on {path}: {error.strerror or error}") from None
        return sock
