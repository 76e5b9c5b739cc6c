"""openpi robots while strangers attack both ports, and while the gateway and the chat front are killed.

    .venv/bin/python -m benchmarks.front_ends under-attack --json FILE

Robots ask at 10 Hz. Quiet blocks alternate with blocks in which 16 bodies of 5.6 MB at a time stream to the gateway,
chat clients ask the embedded model without a pause, and on both ports sit clients that read nothing and clients that
never finish what they send. Then the gateway and the chat front are killed by turns. The attackers run on this machine,
at nice 10, and share its cores.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection

from benchmarks.chaos.attacks import HTTP_HEAD, SlowSocket
from benchmarks.chaos.bodies_attack import AT_ONCE, Sender
from benchmarks.chaos.interference import QUIET, Bars, RobotHistory, Spans, holds, undisturbed, verdict
from benchmarks.chaos.mixed_guests import talkers
from benchmarks.chaos.process_facts import alive, wait_for
from benchmarks.chaos.report import ScenarioReport, parser, progress
from benchmarks.chaos.robots import INSTRUCTION, KillableProcess, run_until_stopped
from benchmarks.chaos.rules import BoundedFigure
from benchmarks.chaos.service import ServiceUnderTest
from benchmarks.front_ends.beside_grpc import answers_rows
from benchmarks.front_ends.half_open import HANDSHAKE, RawWebsocket
from benchmarks.front_ends.openpi_robot import DistinctObservations, RobotRecord, be_nice, openpi_track, stub_service
from tests.fuzz.websocket_frames import frame

ROBOTS, HZ = 2, 10.0
PASS_S = 0.001
BODIES, BODY_BYTES = 16, 5_600_000
TALKERS, READERS, UPLOADERS = 4, 8, 16
BLOCK_S, EVERY_S, KILLS = 15.0, 4.0, 5
PATIENCE_S, FINISH_S = 30.0, 120.0
ATTACK, KILLED = "attacks", "kills"
ROLES = ("gateway", "chat")
ATTACK_BARS = Bars(least_share=0.95, rise_ms=50.0)
STRANGERS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")  # connections are counted per address
PIPELINED = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100
REST_S = 0.05
LISTED = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100


def main() -> int:
    """Run the section; return the exit code."""
    made = parser(__doc__, 4)
    made.add_argument("--seconds", type=float, default=BLOCK_S, help="length of a block")
    made.add_argument("--kills", type=int, default=KILLS, help="of each process")
    arguments = made.parse_args()
    report, spans, did = ScenarioReport("under-attack", arguments), Spans(), dict[str, Counter[str]]()
    config = {"chat": {"enabled": True}, "timing": {"crash_limit": 1000}}
    with stub_service(ROBOTS + READERS // 4, config, pass_s=PASS_S) as service, ExitStack() as stack:
        port = service.port("robots")
        robots = [
            stack.enter_context(KillableProcess(openpi_track, port, HZ, "127.0.0.1", seed)) for seed in range(ROBOTS)
        ]
        for robot in robots:
            robot.receive()
        with progress() as bar:
            for _ in bar.track(range(arguments.trials), description=ATTACK):
                spans.wait(QUIET, arguments.seconds)
                _attack(service, spans, arguments.seconds, did)
            with spans.during(KILLED):
                for _ in bar.track(range(arguments.kills), description=KILLED):
                    for role in ROLES:
                        _kill(service, role)
        lost = Counter(str(event["child"]) for event in service.events("child_lost"))
        kept: list[RobotRecord] = [robot.finish(FINISH_S) for robot in robots]
    tracks: list[RobotHistory] = [each.track for each in kept]
    killed = holds(tracks, spans.all, KILLED)
    rows = [
        *undisturbed("openpi robots", tracks, spans.all),
        *verdict("openpi robots", tracks, spans.all, ATTACK, ATTACK_BARS),
        BoundedFigure(f"openpi robots: refusals and HOLDs beside {ATTACK}", len(holds(tracks, spans.all, ATTACK))),
        *answers_rows("openpi robots", kept)[:3],
        BoundedFigure("openpi robots: wrong actions", sum(each.wrong for each in kept), "", 0),
        *verdict("openpi robots", tracks, spans.all, KILLED, ATTACK_BARS),
        BoundedFigure("processes killed", arguments.kills * len(ROLES)),
        BoundedFigure("openpi robots: HOLDs, refusals and lost answers beside kills", len(killed), "", 0),
        BoundedFigure("robots' processes lost", lost["robots"], "", 0),
    ]
    samples = {name: dict(each) for name, each in did.items()}
    return report.finish(rows, did=samples, lost=dict(lost), holds=[each.holds for each in tracks])


def _attack(service: ServiceUnderTest, spans: Spans, seconds: float, did: dict[str, Counter[str]]) -> None:
    """One block with all attackers; their counts are added to those of earlier blocks."""
    http, robots = service.port("http"), service.port("robots")
    with ExitStack() as stack:
        attackers = {
            "bodies by status": KillableProcess(bodies, http, STRANGERS[0]),
            "chats by status": KillableProcess(talkers, http, TALKERS),
            "stuck readers": KillableProcess(stuck_readers, http, robots, STRANGERS[1]),
            "stuck uploaders": KillableProcess(stuck_uploaders, http, robots, UPLOADERS),
        }
        for attacker in attackers.values():
            stack.enter_context(attacker)
            attacker.receive(PATIENCE_S)
        spans.wait(ATTACK, seconds)
        for name, attacker in attackers.items():
            found: Counter[str] = attacker.finish(FINISH_S)
            did[name] = did.get(name, Counter()) + Counter({str(key): count for key, count in found.items()})


def bodies(link: Connection, port: int, source: str) -> None:
    """Work of a process: observations of 5.6 MB, one after another on so many connections; reports the statuses."""
    be_nice()
    image = base64.b64encode(bytes((BODY_BYTES - 100) * 3 // 4)).decode()
    body = json.dumps({"image": image, "instruction": INSTRUCTION}).encode()
    senders = [Sender(port, source, "/v1/act", body, AT_ONCE) for _ in range(BODIES)]

    def stop() -> None:
        for sender in senders:
            sender.stopped.set()

    run_until_stopped(link, [sender.run for sender in senders], stop, PATIENCE_S)
    link.send(sum((sender.answers for sender in senders), Counter()))


def stuck_readers(link: Connection, http_port: int, robots_port: int, source: str) -> None:
    """Work of a process: clients that keep asking and never read; it reports how often they were disconnected."""
    be_nice()
    over, ended = threading.Event(), Counter[str]()
    message = DistinctObservations(0).message()

    def over_http(port: int, request: bytes) -> None:
        while not over.is_set():
            with suppress(OSError), _deaf(port, source) as client:
                while not over.is_set():
                    client.sendall(request)
            ended["HTTP"] += 1
            over.wait(REST_S)

    def over_websocket() -> None:
        while not over.is_set():
            with suppress(OSError):
                client = RawWebsocket(robots_port, source, unread_bytes=4096)
                try:
                    client.shake()
                    client.link.settimeout(5.0)
                    while not over.is_set():
                        client.link.sendall(frame(message))
                finally:
                    client.link.close()
            ended["websocket"] += 1
            over.wait(REST_S)

    def listing() -> None:
        over_http(robots_port, LISTED)

    def models() -> None:
        over_http(http_port, PIPELINED)

    works = [listing] * (READERS // 4) + [models] * (READERS // 2) + [over_websocket] * (READERS // 4)
    run_until_stopped(link, works, over.set, PATIENCE_S)
    link.send(ended)


def _deaf(port: int, source: str) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(5.0)
    client.bind((source, 0))
    client.connect(("127.0.0.1", port))
    return client


def stuck_uploaders(link: Connection, http_port: int, robots_port: int, count: int) -> None:
    """Work of a process: clients that never finish a message; it reports how often they were disconnected."""
    be_nice()
    length = b"content-type: application/json\r\ncontent-length: 5000000\r\n\r\n"
    act = HTTP_HEAD.replace(b"/v1/act", b"/act").replace(b"x-slow: ", length)
    started = frame(bytes(100_000))
    kinds = [
        (http_port, HTTP_HEAD.replace(b"x-slow: ", length), b" " * 5000),
        (robots_port, act, b" " * 5000),
        (robots_port, HANDSHAKE[:-2], b""),
        (robots_port, HANDSHAKE + started[:50], started[50:]),
    ]
    sockets = [
        SlowSocket(("127.0.0.1", port), first, rest)
        for port, first, rest in (kinds[index % len(kinds)] for index in range(count))
    ]
    cut = Counter[str]()
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            for each in sockets:
                cut["cut off"] += each.step()
                over.wait(1.0 / count)

    run_until_stopped(link, [run], over.set, PATIENCE_S)
    for each in sockets:
        each.close()
    link.send(cut)


def _kill(service: ServiceUnderTest, role: str) -> None:
    due = time.monotonic() + EVERY_S
    if wait_for(lambda: service.child(role) is not None, PATIENCE_S) is None:
        raise TimeoutError(f"no {role} process within {PATIENCE_S:g} s")
    pid = service.child(role) or 0
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid), PATIENCE_S, 0.001)
    time.sleep(max(due - time.monotonic(), 0))
