"""The state of the service, and its answers to probes.

STARTING → WARMING → READY ⇄ DEGRADED → DRAINING → STOPPED, and FAULT from anywhere but the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

MOST = 8  # connections; a new one replaces the oldest
PATIENCE_S = 2.0  # for a request to arrive
REQUEST_BYTES = 4096
WAIT_S = 0.2  # between checks of the clock, and after a lack of descriptors
LIVE, READY = ("/live", "/healthz"), ("/ready", "/readyz")


class HealthState(str, Enum):
    """The state of the service. DEGRADED: sessions stay open while the worker is replaced. FAULT: that failed."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAULT = "fault"


_NEXT = {
    HealthState.STARTING: {HealthState.WARMING, HealthState.DRAINING, HealthState.STOPPED, HealthState.FAULT},
    HealthState.WARMING: {HealthState.READY, HealthState.DRAINING, HealthState.STOPPED, HealthState.FAULT},
    HealthState.READY: {HealthState.DEGRADED, HealthState.DRAINING, HealthState.FAULT},
    HealthState.DEGRADED: {HealthState.READY, HealthState.DRAINING, HealthState.FAULT},
    HealthState.FAULT: {HealthState.DRAINING, HealthState.STOPPED},
    HealthState.DRAINING: {HealthState.STOPPED},
    HealthState.STOPPED: set(),
}


class Health:
    """Holds the state, which `move` changes; listeners are called for every change, in the thread that causes it."""

    def __init__(self) -> None:
        self.state = HealthState.STARTING
        self._stalled = False
        self._listeners: list[Callable[[HealthState], None]] = []
        self._watchers: list[Callable[[bool], object]] = []

    @property
    def stalled(self) -> bool:
        """True while the event loop is blocked, as reported by the watching thread."""
        return self._stalled

    @stalled.setter
    def stalled(self, stalled: bool) -> None:
        self._stalled = stalled
        self._notify_watchers()

    @property
    def live(self) -> bool:
        """False if this process should be restarted."""
        return self.state is not HealthState.FAULT and not self._stalled

    @property
    def ready(self) -> bool:
        """True if new sessions get actions: a worker runs and the service is not stopping."""
        return self.state is HealthState.READY and not self._stalled

    def listen(self, listener: Callable[[HealthState], None]) -> None:
        """Call `listener` with the present and every later state."""
        self._listeners.append(listener)
        listener(self.state)

    def watch(self, watcher: Callable[[bool], object]) -> None:
        """Call `watcher` with `ready`, now and whenever it may have changed."""
        self._watchers.append(watcher)
        watcher(self.ready)

    def move(self, state: HealthState) -> bool:
        """Change the state; False, without effect, if the transition does not exist."""
        if state not in _NEXT[self.state]:
            return False
        self.state = state
        for listener in self._listeners:
            listener(state)
        self._notify_watchers()
        return True

    def _notify_watchers(self) -> None:
        for watcher in self._watchers:
            watcher(self.ready)


@dataclass(slots=True)
class _HealthConnection:
    """A client, and the bytes it has sent."""

    sock: socket.socket
    until_s: float
    heard: bytes = b""


class HealthListener:
    """Answers GET /live and /ready between `start` and `stop`. sock: bound and listening; it is closed at the end."""

    def __init__(self, sock: socket.socket, health: Health) -> None:
        self.port: int = sock.getsockname()[1]
        self._sock = sock
        self._health = health
        self._open: dict[int, _HealthConnection] = {}
        self._stopping = False
        self._spare = os.open(os.devnull, os.O_RDONLY)  # to accept a probe when descriptors run out
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        sock.setblocking(False)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close everything; idempotent."""
        self._stopping = True
        if self._thread.is_alive():
            with contextlib.suppress(OSError):  # not every system has it
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread
            self._thread.join()
        for each in self._open.values():
            each.sock.close()
        self._open.clear()
        self._sock.close()
        with contextlib.suppress(OSError):
            os.close(self._spare)
        self._spare = -1

    def _run(self) -> None:
        while True:
            poll = select.poll()
            for descriptor in (self._sock.fileno(), *self._open):
                poll.register(descriptor, select.POLLIN)
            found = poll.poll(WAIT_S * 1000)
            if self._stopping:
                return
            for descriptor, _ in found:
                if descriptor == self._sock.fileno():
                    self._accept()
                elif descriptor in self._open:
                    self._hear(descriptor)
            now_s = time.monotonic()
            for descriptor in [each for each, link in self._open.items() if link.until_s < now_s]:
                self._close(descriptor)

    def _accept(self) -> None:
        if len(self._open) >= MOST:
            self._close(next(iter(self._open)))
        try:
            sock, _ = self._sock.accept()
        except BlockingIOError:
            return
        except OSError:
            self._accept_with_spare()
            return
        self._keep(sock)

    def _accept_with_spare(self) -> None:
        """Accept with the spare descriptor, which is opened again after the answer."""
        if self._open:
            self._close(next(iter(self._open)))
        elif self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        try:
            sock, _ = self._sock.accept()
        except OSError:
            time.sleep(WAIT_S)
        else:
            self._keep(sock)

    def _keep(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._open[sock.fileno()] = _HealthConnection(sock, time.monotonic() + PATIENCE_S)

    def _hear(self, descriptor: int) -> None:
        link = self._open[descriptor]
        try:
            data = link.sock.recv(REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        link.heard += data
        if b"\r\n\r\n" in link.heard or b"\n\n" in link.heard:
            with contextlib.suppress(OSError):
                link.sock.send(self._answer(link.heard))
            self._close(descriptor)
        elif not data or len(link.heard) > REQUEST_BYTES:
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        self._open.pop(descriptor).sock.close()
        if self._spare < 0:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0].decode("latin-1")
        if path not in (*LIVE, *READY) or method not in (b"GET", b"HEAD"):
            return b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        good = self._health.live if path in LIVE else self._health.ready
        body = json.dumps({"state": self._health.state.value}).encode()
        status = "200 OK" if good else "503 Service Unavailable"
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return f"{head}connection: close\r\n\r\n".encode() + (body if method == b"GET" else b"")
