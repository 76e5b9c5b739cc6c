"""Attacks by strangers: sockets that send almost nothing, and calls that are reset at once.

Each attack runs in its own process, which reports when it has started and, at its end, what it did.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from benchmarks.chaos.robots import STREAM, told_to_stop
from tests.fuzz import h2

SETTLE_S = 2.0  # time until an attack counts as started: sockets are open, first answers have come
BURST = 100  # resets in one write
PATIENCE_S = 5.0
ROUND_S = 1.0  # in which every slow socket sends a byte, or comes again when it was cut
HTTP_HEAD = b"POST /v1/act HTTP/1.1\r\nhost: localhost\r\nx-slow: "
HTTP2_HEAD = h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0, b"")
CALL = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.headers(STREAM.encode()))


class SlowSocket:
    """A socket that sends `first`, then one byte of `rest` per step, and reconnects when it was closed."""

    def __init__(self, address: tuple[str, int], first: bytes, rest: bytes) -> None:
        self._address, self._first, self._rest = address, first, rest
        self._link: socket.socket | None = None
        self._said = 0

    def step(self) -> bool:
        """Send one more byte; True when the service had closed the socket."""
        try:
            if self._link is None:
                self._link = socket.create_connection(self._address, PATIENCE_S)
                self._link.setblocking(False)
                self._link.send(self._first)
                self._said = 0
            elif self._cut():
                raise ConnectionResetError
            elif self._said < len(self._rest):
                self._link.send(self._rest[self._said : self._said + 1])
                self._said += 1
        except OSError:
            self.close()
            return True
        return False

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _cut(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            while self._link is not None:
                if not self._link.recv(1 << 16):
                    return True
        return False


def slow_sockets(link: Connection, grpc_port: int, http_port: int, count: int) -> None:
    """Run `count` slow sockets, divided between both ports: silent, half a preface, a call without a message, endless
    headers.

    Reports how many per second the service closed.
    """
    grpc_at, http_at = ("127.0.0.1", grpc_port), ("127.0.0.1", http_port)
    kinds = [
        (grpc_at, b"", b""),
        (http_at, b"", b""),
        (grpc_at, b"", h2.PREFACE),
        (http_at, b"", HTTP_HEAD),
        (grpc_at, HTTP2_HEAD, b""),
        (http_at, HTTP_HEAD, b"a" * 1000),
        (grpc_at, HTTP2_HEAD + CALL, b""),
        (http_at, HTTP_HEAD.replace(b"x-slow: ", b"content-length: 1000\r\n\r\n"), b" " * 1000),
    ]
    sockets = [SlowSocket(*kinds[index % len(kinds)]) for index in range(count)]
    cut = 0

    def turn() -> None:
        nonlocal cut
        for each in sockets:
            cut += each.step()
            time.sleep(ROUND_S / count)

    started = time.monotonic()
    _attack(link, turn)
    link.send(cut / (time.monotonic() - started))
    for each in sockets:
        each.close()


class Flood:
    """A flood of calls that are reset right after their headers, on one connection after another."""

    def __init__(self, port: int) -> None:
        self.sent = 0
        self._port = port
        self._block = h2.headers(STREAM.encode())
        self._connect()

    def send_burst(self) -> None:
        """Send BURST calls in one write."""
        try:
            self._link.sendall(b"".join(h2.call_reset_at_once(next(self._streams), self._block) for _ in range(BURST)))
            self.sent += BURST
            with contextlib.suppress(BlockingIOError):
                self._link.recv(1 << 16, socket.MSG_DONTWAIT)
        except OSError:
            self.close()
            self._connect()

    def close(self) -> None:
        self._link.close()

    def _connect(self) -> None:
        self._link = socket.create_connection(("127.0.0.1", self._port), PATIENCE_S)
        self._link.sendall(HTTP2_HEAD)
        self._streams = itertools.count(1, 2)


def rapid_resets(link: Connection, grpc_port: int, rate: int) -> None:
    """Send `rate` calls per second, or as many as are accepted, and report the rate reached."""
    flood = Flood(grpc_port)
    due = time.monotonic()

    def turn() -> None:
        nonlocal due
        flood.send_burst()
        due = max(due + BURST / rate, time.monotonic() - 1.0)
        time.sleep(max(due - time.monotonic(), 0))

    started = time.monotonic()
    _attack(link, turn)
    link.send(flood.sent / (time.monotonic() - started))
    flood.close()


def _attack(link: Connection, turn: Callable[[], None]) -> None:
    """Repeat a step until the benchmark sends a message."""
    settled = time.monotonic() + SETTLE_S
    while time.monotonic() < settled:
        turn()
    link.send("at it")
    while not told_to_stop(link):
        turn()
