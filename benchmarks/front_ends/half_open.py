"""Clients that vanish without a goodbye: their connections and sessions must end by themselves.

    .venv/bin/python -m benchmarks.front_ends half-open --json FILE

Sockets stay open and answer nothing any more, not even pings: after the handshake, after an answer, in the middle of a
message, with answers left unread; and one whose process is stopped (SIGSTOP). A robot acts beside them.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.chaos.process_facts import wait_for
from benchmarks.chaos.report import ScenarioReport
from benchmarks.chaos.robots import KillableProcess
from benchmarks.chaos.rules import BoundedFigure
from benchmarks.chaos.service import ServiceUnderTest
from benchmarks.command import options
from benchmarks.front_ends.beside_grpc import answers_rows
from benchmarks.front_ends.openpi_robot import PATIENCE_S, DistinctObservations, RobotRecord, openpi_track, stub_service
from tests.fuzz.websocket_frames import BINARY, frame

BAR_S, GIVE_UP_S = 30.0, 60.0
STRANGER = "127.0.0.2"
SESSIONS = 8
SIDE = 224
UNREAD = (
    12  # observations sent at once by a client that reads no answers; more than 16 would end the connection at once
)
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class RawWebsocket:
    """A client's websocket of which nothing happens by itself. source: its address. unread_bytes: its kernel takes no
    more than about so many that it has not read; 0 = as many as usual.
    """

    def __init__(self, port: int, source: str = STRANGER, unread_bytes: int = 0) -> None:
        self.link = socket.socket()
        if unread_bytes:
            self.link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, unread_bytes)
        self.link.settimeout(PATIENCE_S)
        self.link.bind((source, 0))
        self.link.connect(("127.0.0.1", port))

    def shake(self) -> None:
        """Upgrade to a websocket, and read the metadata."""
        self.link.sendall(HANDSHAKE)
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._some()
        if not head.startswith(b"HTTP/1.1 101"):
            raise ConnectionError(head[:100])
        self._message(head.partition(b"\r\n\r\n")[2])

    def send(self, data: bytes, kind: int = BINARY) -> None:
        """Send a message."""
        self.link.sendall(frame(data, kind))

    def receive(self) -> bytes:
        """The next message."""
        return self._message(b"")

    def _message(self, data: bytes) -> bytes:
        while (whole := _whole(data)) is None:
            data += self._some()
        return whole

    def _some(self) -> bytes:
        found = self.link.recv(1 << 16)
        if not found:
            raise ConnectionError("the service closed the connection")
        return found


def _whole(data: bytes) -> bytes | None:
    """The message at the start of these bytes, which a server sent; None if it is incomplete."""
    if len(data) < 2:
        return None
    size, at = data[1], 2
    if size == 126:
        size, at = (struct.unpack_from(">H", data, 2)[0], 4) if len(data) >= 4 else (1 << 63, 4)
    elif size == 127:
        size, at = (struct.unpack_from(">Q", data, 2)[0], 10) if len(data) >= 10 else (1 << 63, 10)
    return data[at : at + size] if len(data) >= at + size else None


def main() -> int:
    """Run the section; return the exit code."""
    arguments = options(__doc__).parse_args()
    report = ScenarioReport("half-open", arguments)
    with (
        stub_service(SESSIONS, {}, pass_s=0.001) as service,
        KillableProcess(openpi_track, service.port("robots"), 10.0) as robot,
    ):
        robot.receive()
        wait_for(lambda: _sessions(service) == 1, PATIENCE_S, 0.1)  # metrics are updated once per second
        ended_s = {name: made(service) for name, made in CASES.items()}
        left = _sessions(service) - 1
        kept: RobotRecord = robot.finish(GIVE_UP_S)
    rows = [BoundedFigure(f"{name}: ended after", seconds, "s", BAR_S) for name, seconds in ended_s.items()]
    rows += [BoundedFigure("sessions left of them", left, "", 0), *answers_rows("a robot beside them", [kept])]
    return report.finish(rows, ended_s=ended_s)


def _sessions(service: ServiceUnderTest) -> float:
    return service.metrics()["edgeflow_sessions"]


def connections(port: int, source: str = STRANGER) -> int:
    """The number of connections from an address to a process listening on this port."""
    near, far = f":{port:04X}", socket.inet_aton(source)[::-1].hex().upper() + ":"
    found = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(each[1].endswith(near) and each[2].startswith(far) and each[9] != "0" for each in found)


def _ended_s(service: ServiceUnderTest, vanished: Callable[[], object], sessions: int) -> float:
    """Seconds until the connection and the session of a vanished client have ended; NaN if they do not."""
    open_before = _sessions(service)
    kept = vanished()

    def over() -> bool:
        return not connections(service.port("robots")) and _sessions(service) <= open_before

    if wait_for(lambda: not over(), PATIENCE_S, 0.05) is None:
        raise RuntimeError("a connection that was to stay open did not")
    if sessions and wait_for(lambda: _sessions(service) > open_before, PATIENCE_S, 0.05) is None:
        raise RuntimeError("no session was opened")
    seconds = wait_for(over, GIVE_UP_S, 0.2)
    del kept
    return seconds if seconds is not None else float("nan")


def _after_handshake(service: ServiceUnderTest) -> float:
    def vanish() -> RawWebsocket:
        client = RawWebsocket(service.port("robots"))
        client.shake()
        return client

    return _ended_s(service, vanish, 0)


def _after_answer(service: ServiceUnderTest) -> float:
    def vanish() -> RawWebsocket:
        client = RawWebsocket(service.port("robots"))
        client.shake()
        client.send(DistinctObservations(0, SIDE).message())
        client.receive()
        return client

    return _ended_s(service, vanish, 1)


def _in_a_message(service: ServiceUnderTest) -> float:
    def vanish() -> RawWebsocket:
        client = RawWebsocket(service.port("robots"))
        client.shake()
        client.link.sendall(frame(DistinctObservations(0, SIDE).message())[:1000])
        return client

    return _ended_s(service, vanish, 0)


def _unread(service: ServiceUnderTest) -> float:
    """A client that asks without reading: its kernel takes a few answers, then the service cannot write any more."""

    def vanish() -> RawWebsocket:
        client = RawWebsocket(service.port("robots"), unread_bytes=4096)
        client.shake()
        client.send(DistinctObservations(0, SIDE).message())
        client.link.settimeout(1.0)
        message = DistinctObservations(0, 8).message()
        with suppress(OSError):
            for _ in range(UNREAD):
                client.send(message)
        return client

    return _ended_s(service, vanish, 1)


def _stopped(service: ServiceUnderTest) -> float:
    robots: list[KillableProcess] = []

    def vanish() -> KillableProcess:
        robots.append(KillableProcess(openpi_track, service.port("robots"), 10.0, STRANGER))
        robots[0].receive()
        os.kill(robots[0].process.pid or 0, signal.SIGSTOP)
        return robots[0]

    try:
        return _ended_s(service, vanish, 1)
    finally:
        robots[0].close()


CASES: dict[str, Callable[[ServiceUnderTest], float]] = {
    "after the handshake": _after_handshake,
    "after an answer": _after_answer,
    "in a message": _in_a_message,
    "with answers unread": _unread,
    "process stopped": _stopped,
}
