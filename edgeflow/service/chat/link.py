"""The chat front's end of its socket to the worker, which changes with each start of a worker."""

from __future__ import annotations

import socket
from typing import Protocol

from edgeflow.ipc.chat_messages import ChatDone, ChatReady, ChatRefused, ChatToken, PrefixSet
from edgeflow.ipc.messages import Message
from edgeflow.service.worker.link import WorkerLink


class ChatListener(Protocol):
    """Receiver of the worker's messages; all calls come on the loop."""

    def worker_ready(self, ready: ChatReady) -> None: ...

    def worker_message(self, message: ChatToken | ChatDone | ChatRefused | PrefixSet) -> None: ...

    def worker_lost(self) -> None: ...


class ChatPort:
    """The connection to the present worker, if any."""

    def __init__(self) -> None:
        self._listener: ChatListener | None = None
        self._link: WorkerLink | None = None

    @property
    def attached(self) -> bool:
        """True if there is a socket to a worker."""
        return self._link is not None

    def listen(self, listener: ChatListener) -> None:
        self._listener = listener

    def send(self, message: Message) -> None:
        """Queue a message; ignored without a worker."""
        if self._link is not None:
            self._link.send(message)

    def attach(self, sock: socket.socket) -> None:
        """Take a socket to a worker, in place of the one before; one that cannot be used is closed."""
        self._drop()
        link = self._link = WorkerLink(
            lambda message: self._receive(link, message), lambda: None, lambda _: self._lost(link)
        )
        try:
            link.connect(sock)
        except OSError:
            self._link = None

    def close(self) -> None:
        """Drop the connection."""
        self._drop()

    def _drop(self) -> None:
        link = self._link
        if link is not None:
            self._lost(link)
            link.close()

    def _receive(self, link: WorkerLink, message: Message) -> None:
        if link is not self._link or self._listener is None:
            return
        match message:
            case ChatReady():
                self._listener.worker_ready(message)
            case ChatToken() | ChatDone() | ChatRefused() | PrefixSet():
                self._listener.worker_message(message)

    def _lost(self, link: WorkerLink) -> None:
        if link is self._link:
            self._link = None
            if self._listener is not None:
                self._listener.worker_lost()
