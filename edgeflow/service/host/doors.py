"""The sockets that children and the health thread serve, bound by control before any of them starts."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from edgeflow.config.service import ServiceConfig
from edgeflow.service.host.listen import BACKLOG, bind
from edgeflow.service.host.private_folder import SOCKET, make_private_folder
from edgeflow.service.host.roles import CHAT, GATEWAY, Role
from edgeflow_client.errors import AddressError


class Doors:
    """Listening sockets, from construction to `close`. A child that restarts finds its callers in the backlog."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        self._folder: Path | None = None
        self._open: list[socket.socket] = []
        try:
            self.http = self._bind("http.port", config.http.host, config.http.port)
            self.health = self._bind("health.port", config.health.host, config.health.port)
            self._chat = self._bind_chat() if config.chat_path is not None else None
        except BaseException:
            self.close()
            raise

    @property
    def http_port(self) -> int:
        port: int = self.http.getsockname()[1]
        return port

    def roles(self) -> list[Role]:
        """The children and what they serve."""
        limits = self._config.limits
        path = str(self._chat.getsockname()) if self._chat is not None else ""
        found = [Role(name=GATEWAY, listener=self.http, chat_path=path, memory_mb=limits.gateway_memory_mb)]
        if self._chat is not None:
            found.append(Role(name=CHAT, listener=self._chat, chat_path=path, memory_mb=limits.chat_memory_mb))
        return found

    def close(self) -> None:
        """Close all sockets; idempotent."""
        for each in self._open:
            each.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _bind(self, key: str, host: str, port: int) -> socket.socket:
        sock = bind(key, host, port)
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
