"""Connections and streams that end in every state they can be in: memory and descriptors must come back.

    .venv/bin/python -m benchmarks.front_ends churn --count 20000 --json FILE

Websockets, requests of POST /act and gRPC streams are opened and dropped, politely or not: before anything was sent, in
the middle of a handshake, a header, a body or a message, while an answer is awaited, and after one. A robot acts beside
them. The first part is warm-up.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

import grpc

from benchmarks.chaos.process_facts import ProcessResources, held, resident, wait_for
from benchmarks.chaos.report import ScenarioReport, progress
from benchmarks.chaos.robots import INSTRUCTION, Channel, KillableProcess
from benchmarks.chaos.rules import MIB, BoundedFigure
from benchmarks.chaos.service import ServiceUnderTest
from benchmarks.command import options
from benchmarks.front_ends import bad_bodies
from benchmarks.front_ends.bad_frames import act_body
from benchmarks.front_ends.beside_grpc import answers_rows
from benchmarks.front_ends.half_open import HANDSHAKE, RawWebsocket
from benchmarks.front_ends.openpi_robot import (
    CAMERAS,
    NUMBERS,
    DistinctObservations,
    RobotRecord,
    be_nice,
    openpi_track,
    stub_service,
)
from edgeflow_client.rpc import control_pb2 as pb
from tests.fuzz.websocket_frames import frame

COUNT, WARM_UP_SHARE = 20_000, 0.2
THREADS, SIDE = 6, 32
SESSIONS = 32
BAR_MIB = 8.0
SETTLE_S, STEP_S, FINISH_S = 45.0, 600.0, 60.0
STEPS = 20  # updates of the progress bar
STREAMS = 50  # of a gRPC connection
CLOSING = frame(b"\x03\xe8", 0x88)  # a websocket's close handshake
ROLES = ("robots", "gateway")


def main() -> int:
    """Run the section; return the exit code."""
    made = options(__doc__)
    made.add_argument("--count", type=int, default=COUNT, help="connections and streams altogether")
    made.add_argument("--seed", type=int, default=0)
    arguments = made.parse_args()
    report, did = ScenarioReport("churn", arguments), Counter[str]()
    config = {
        "frontends": {"openpi": {"period_ms": 20}, "openvla": {"cameras": {CAMERAS[0]: bad_bodies.IMAGE}}},
        "limits": {"streams": 64},
    }
    parts = {"warm-up": WARM_UP_SHARE, "measured": 1 - WARM_UP_SHARE}
    sizes, open_, pids = list[dict[str, int]](), list[dict[str, ProcessResources]](), list[dict[str, int]]()

    def sample() -> None:
        found = processes(service)
        pids.append(found)
        sizes.append({name: resident(pid) for name, pid in found.items()})
        open_.append({name: held(pid) for name, pid in found.items()})

    with (
        stub_service(SESSIONS, config) as service,
        KillableProcess(openpi_track, service.port("robots"), 10.0) as robot,
    ):
        robot.receive()
        sample()
        with progress() as bar:
            for name, share in parts.items():
                each = max(round(arguments.count * share / STEPS), 1)
                for step in bar.track(range(STEPS), description=name):
                    plan = (service.address, service.port("robots"), each, f"{arguments.seed} {name} {step}")
                    with KillableProcess(churned, *plan) as client:
                        did += client.receive(STEP_S)  # type: ignore[arg-type]
                settled = partial(_settled, service, open_[0])
                wait_for(settled, SETTLE_S, 0.5)
                sample()
        sessions = service.metrics()["edgeflow_sessions"] - 1
        kept: RobotRecord = robot.finish(FINISH_S)
        incidents = service.log.read_text(errors="replace").count('"incident"')
    rows = [
        BoundedFigure("connections and streams", did.total()),
        BoundedFigure("sessions left of them", sessions, "", 0),
    ]
    for name in pids[-1]:
        grown = (sizes[-1][name] - sizes[1].get(name, 0)) / MIB
        more = open_[-1][name].descriptors - open_[1][name].descriptors if name in open_[1] else float("nan")
        rows += [
            BoundedFigure(f"{name}: resident at the end", sizes[-1][name] / MIB, "MiB"),
            BoundedFigure(f"{name}: growth after the warm-up", grown, "MiB", BAR_MIB),
            BoundedFigure(f"{name}: descriptors more than after the warm-up", more, "", 0),
        ]
    replaced = sum(pids[0][name] != pid for name, pid in pids[-1].items())
    rows += [
        BoundedFigure("processes replaced", replaced, "", 0),
        BoundedFigure("incidents in the log", incidents, "", 0),
        *answers_rows("a robot beside them", [kept]),
    ]
    held_samples = [{name: each.descriptors for name, each in one.items()} for one in open_]
    return report.finish(rows, did=dict(did), resident=sizes, descriptors=held_samples)


def processes(service: ServiceUnderTest) -> dict[str, int]:
    """Process ids by name."""
    found = {"control": service.pid, "worker": service.worker()}
    return found | {role: pid for role in ROLES if (pid := service.child(role)) is not None}


def _settled(service: ServiceUnderTest, before: dict[str, ProcessResources]) -> bool:
    found = processes(service)
    if service.metrics()["edgeflow_sessions"] > 1:  # except that of the robot beside them
        return False
    return all(held(pid).descriptors <= before[name].descriptors for name, pid in found.items() if name in before)


def churned(link: Connection, address: str, port: int, count: int, seed: str) -> None:
    """Work of a process: `count` connections and streams in threads; it reports how many ended in each state."""
    be_nice()
    did, lock, left = Counter[str](), threading.Lock(), iter(range(count))

    def run(thread: int) -> None:
        client = _Client(address, port, f"127.0.1.{thread + 1}", random.Random(f"{seed} {thread}"))
        while True:
            with lock:
                if next(left, None) is None:
                    break
            name = client.chance.choice(list(STATES))
            try:
                STATES[name](client)
            except (OSError, grpc.RpcError) as error:
                name = f"{name}: {type(error).__name__}"
            with lock:
                did[name] += 1
        client.close()

    threads = [threading.Thread(target=run, args=(thread,), daemon=True) for thread in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    link.send(did)


class _Client:
    """Messages and connections of one thread."""

    def __init__(self, address: str, port: int, source: str, chance: random.Random) -> None:
        self.chance = chance
        self._address, self._port, self._source = address, port, source
        scene = DistinctObservations(chance.randrange(1 << 20), SIDE)
        self.message = frame(scene.message())
        body = json.dumps(act_body(scene)).encode()
        head = f"POST /act HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self.request = f"{head}\r\n\r\n".encode() + body
        images = [pb.Image(data=image.tobytes()) for image in scene.images.values()]
        self.frame = pb.Frame(seq=1, images=images, proprio=scene.state.tolist())
        self._channel: Channel | None = None
        self._streams = 0

    def part(self, data: bytes) -> bytes:
        """A beginning of these bytes, at least one byte and not all."""
        return data[: self.chance.randrange(1, len(data))]

    def dropped(self, use: Callable[[socket.socket], object]) -> None:
        """Open a TCP connection, use it, then close or reset it."""
        with socket.create_connection(("127.0.0.1", self._port), 10.0, source_address=(self._source, 0)) as link:
            use(link)
            if self.chance.random() < 0.5:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def websocket(self, use: Callable[[RawWebsocket], object]) -> None:
        """Open a websocket, use it, then close it with or without a close handshake, or reset it."""
        client = RawWebsocket(self._port, self._source)
        try:
            client.shake()
            use(client)
            end = self.chance.randrange(3)
            if end == 0:
                client.link.sendall(CLOSING)
            elif end == 1:
                client.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            client.link.close()

    def stream(self, messages: int, heard: int) -> None:
        """A gRPC stream that sends `messages` messages, receives `heard` and is cancelled."""
        if self._channel is None or self._streams % STREAMS == 0:
            self.close()
            self._channel = Channel(self._address)
        self._streams += 1
        over = threading.Event()
        call = self._channel.stream(self._messages(messages, over))
        try:
            for _, _ in zip(range(heard), call, strict=False):
                pass
        finally:
            call.cancel()
            over.set()

    def close(self) -> None:
        """Close the gRPC connection."""
        if self._channel is not None:
            self._channel.channel.close()
            self._channel = None

    def _messages(self, count: int, over: threading.Event) -> Iterator[pb.ClientMessage]:
        opened = pb.Open(
            cameras=[pb.Camera(name=name, width=SIDE, height=SIDE, format=pb.IMAGE_FORMAT_RGB8) for name in CAMERAS],
            state=[pb.StateVector(name="state", size=NUMBERS)],
            instruction=INSTRUCTION,
            control_period_ms=50,
            chunks=True,
        )
        sent = [pb.ClientMessage(open=opened), pb.ClientMessage(frame=self.frame)]
        for message in sent[:count]:
            if message.HasField("frame"):
                message.frame.stamp_ns = time.monotonic_ns()
            yield message
        over.wait(10.0)


def _asked(client: _Client, answered: bool) -> None:
    def use(socket: RawWebsocket) -> None:
        socket.link.sendall(client.message)
        if answered:
            socket.receive()

    client.websocket(use)


def _posted(client: _Client, answered: bool) -> None:
    def use(link: socket.socket) -> None:
        link.sendall(client.request)
        if answered:
            with suppress(TimeoutError):
                link.recv(1 << 16)

    client.dropped(use)


STATES: dict[str, Callable[[_Client], object]] = {
    "TCP alone": lambda client: client.dropped(lambda _: None),
    "in a handshake": lambda client: client.dropped(lambda link: link.sendall(client.part(HANDSHAKE))),
    "handshake sent": lambda client: client.dropped(lambda link: link.sendall(HANDSHAKE)),
    "websocket": lambda client: client.websocket(lambda _: None),
    "websocket, in a message": lambda client: client.websocket(
        lambda each: each.link.sendall(client.part(client.message))
    ),
    "websocket, asked": lambda client: _asked(client, answered=False),
    "websocket, answered": lambda client: _asked(client, answered=True),
    "/act, in a request": lambda client: client.dropped(lambda link: link.sendall(client.part(client.request))),
    "/act, asked": lambda client: _posted(client, answered=False),
    "/act, answered": lambda client: _posted(client, answered=True),
    "stream": lambda client: client.stream(0, 0),
    "stream, open sent": lambda client: client.stream(1, 0),
    "stream, open": lambda client: client.stream(1, 1),
    "stream, asked": lambda client: client.stream(2, 1),
    "stream, answered": lambda client: client.stream(2, 2),
}
