"""Every kind of bad message to the openpi socket, and of bad body to POST /act, each followed by a good one.

    .venv/bin/python -m benchmarks.front_ends bad-frames --count 1000 --json FILE

A bad one must get the protocol's rejection (a text frame, or a JSON object with 4xx) that names its field, and no
action; the good one after it the right action. An openpi client at 10 Hz and a gRPC robot at 20 Hz act beside it. The
limit of rejections per connection is raised for this, and tried apart.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection

import numpy as np
from websockets.exceptions import ConnectionClosed, WebSocketException

from benchmarks.chaos.interference import QUIET, Bars, RobotHistory, Spans, holds, undisturbed, verdict
from benchmarks.chaos.report import ScenarioReport, progress
from benchmarks.chaos.robots import INSTRUCTION, KillableProcess
from benchmarks.chaos.rules import BoundedFigure
from benchmarks.command import options
from benchmarks.front_ends import bad_bodies, bad_messages
from benchmarks.front_ends.beside_grpc import answers_rows
from benchmarks.front_ends.openpi_robot import (
    CAMERAS,
    PATIENCE_S,
    DistinctObservations,
    OpenpiLink,
    RobotRecord,
    be_nice,
    grpc_track,
    is_right,
    openpi_track,
    rows,
    stub_service,
)
from edgeflow.service.frontends.numpy_json import array_json

SIDE = 32  # rejected images per robot; more of them take minutes
STRANGER = "127.0.0.2"
QUIET_S, FINISH_S, KIND_S = 10.0, 60.0, 600.0
BAD = "bad frames"
BARS = Bars(least_share=0.95, rise_ms=15.0)
ROBOT_HZ, GRPC_HZ = 10.0, 20.0
PASS_S, FASTEST_MS = 0.0005, 4  # with others present, a robot is served no faster than it declared
SPEAKERS = ("openpi", "act")
REFUSED, ENDED = "REJECTED ", "socket ended"
CODE_CLOSED = 1008
LIMIT = 100  # rejections within 10 s, by default
PROBLEMS = 3  # examples shown per kind


@dataclass(slots=True)
class BadFrameFindings:
    """The results for one kind."""

    kind: str
    start_ns: int = field(default_factory=time.monotonic_ns)
    end_ns: int = 0
    slowest_ms: float = 0.0
    """Slowest round trip of the openpi robot beside it."""
    sent: int = 0
    wrong: int = 0
    problems: list[str] = field(default_factory=list)
    """The first wrong answers."""

    def note(self, problem: str) -> None:
        """Count a wrong answer; "" is not a problem."""
        if problem:
            self.wrong += 1
            if len(self.problems) < PROBLEMS:
                self.problems.append(problem[:300])


def main() -> int:
    """Run the section; return the exit code."""
    made = options(__doc__)
    made.add_argument("--count", type=int, default=1000, help="of each kind")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--kind", action="append", default=[], help="only this one; may be repeated")
    arguments = made.parse_args()
    report, spans, found = ScenarioReport("bad-frames", arguments), Spans(), list[BadFrameFindings]()
    config = {
        "limits": {"rejected_frames": 100_000},
        "frontends": {"openpi": {"period_ms": FASTEST_MS}, "openvla": {"cameras": {CAMERAS[0]: bad_bodies.IMAGE}}},
    }
    with (
        stub_service(4, config, pass_s=PASS_S) as service,
        KillableProcess(openpi_track, service.port("robots"), ROBOT_HZ) as robot,
        KillableProcess(grpc_track, service.address, GRPC_HZ) as other,
    ):
        robot.receive(), other.receive()
        spans.wait(QUIET, QUIET_S)
        kinds = {"openpi": list(bad_messages.KINDS), "act": list(bad_bodies.KINDS)}
        chosen = [(who, kind) for who, each in kinds.items() for kind in each if kind in (arguments.kind or each)]
        plan = BadFramesPlan(service.port("robots"), chosen, arguments.count, arguments.seed)
        with KillableProcess(send_bad, plan) as stranger, progress() as bar:
            stranger.receive()
            with spans.during(BAD):
                for _ in bar.track(chosen, description=BAD):
                    found.append(stranger.receive(KIND_S))  # type: ignore[arg-type]
        kept: RobotRecord = robot.finish(FINISH_S)
        track: RobotHistory = other.finish(FINISH_S)
        incidents = service.log.read_text(errors="replace").count('"incident"')
    closed = closing()
    for each in found:
        during = [age for at, age in kept.track.actions if each.start_ns <= at < each.end_ns]
        each.slowest_ms = round(max(during, default=0) / 1e6, 3)
    slowest = max(found, key=lambda each: each.slowest_ms)
    figures = [
        BoundedFigure("kinds", len(found)),
        BoundedFigure("bad frames", sum(each.sent for each in found)),
        BoundedFigure("wrong answers", sum(each.wrong for each in found), "", 0),
        BoundedFigure("incidents in the log", incidents, "", 0),
        BoundedFigure(f"refusals before a connection is closed, beyond {LIMIT}", closed - LIMIT, "", 1),
        *undisturbed("gRPC robot", [track], spans.all),
        *verdict("gRPC robot", [track], spans.all, BAD, BARS),
        BoundedFigure(f"gRPC robot: HOLDs beside {BAD}", len(holds([track], spans.all, BAD)), "", 0),
        *undisturbed("openpi robot", [kept.track], spans.all),
        *verdict("openpi robot", [kept.track], spans.all, BAD, BARS),
        *answers_rows("openpi robot", [kept]),
    ]
    for each in found:
        if each.wrong:
            print(f"{each.kind}: {each.wrong} of {each.sent} wrong: {each.problems}")
    print(f"the openpi robot was answered slowest beside {slowest.kind}: {slowest.slowest_ms:g} ms")
    return report.finish(figures, kinds=[asdict(each) for each in found], holds=kept.track.holds)


@dataclass(frozen=True, slots=True)
class BadFramesPlan:
    """The task of a stranger."""

    port: int
    kinds: list[tuple[str, str]]
    """Front end and kind of each bad input."""
    count: int
    seed: int


def send_bad(link: Connection, plan: BadFramesPlan) -> None:
    """Work of a process: bad messages of each kind, each followed by a good one; it reports its start, then a Found
    each time.
    """
    be_nice()
    link.send("at it")
    for who, kind in plan.kinds:
        chance, scene, found = (
            random.Random(f"{plan.seed} {kind}"),
            DistinctObservations(plan.seed, SIDE),
            BadFrameFindings(f"{who}: {kind}"),
        )
        problems = _openpi_problems if who == "openpi" else _act_problems
        for problem in problems(plan.port, kind, scene, chance, plan.count):
            found.sent += 1
            found.note(problem)
        found.end_ns = time.monotonic_ns()
        link.send(found)


def _openpi_problems(
    port: int, kind: str, scene: DistinctObservations, chance: random.Random, count: int
) -> Iterator[str]:
    bad, socket = bad_messages.KINDS[kind], OpenpiLink(port, STRANGER)
    for _ in range(count):
        scene.change()
        message = bad.make(scene.observation(), chance)
        try:
            problem = refusal_problem(socket.ask(message), bad.field)
        except ConnectionClosed as error:
            code = error.rcvd.code if error.rcvd is not None else 0
            problem = "" if bad.closes and code in (bad.closes, 0) else f"{ENDED}: {error}"
            socket.close()
            socket = OpenpiLink(port, STRANGER)
        except (OSError, WebSocketException) as error:
            problem = repr(error)
            socket.close()
            socket = OpenpiLink(port, STRANGER)
        yield problem or _good_problem(socket, scene)
    socket.close()


def _good_problem(socket: OpenpiLink, scene: DistinctObservations) -> str:
    try:
        reply = socket.ask(scene.message())
    except (OSError, WebSocketException) as error:
        return f"after it: {error!r}"
    return "" if is_right(reply, scene) else f"after it: {str(reply)[:200]}"


def refusal_problem(reply: bytes | str, named: str) -> str:
    """Why a reply is not openpi's rejection naming the field; "" if it is."""
    if not isinstance(reply, str):
        return "an action" if rows(reply) is not None else f"no text: {reply[:100]!r}"
    if not reply.startswith(REFUSED) or "Traceback" in reply or "incident" in reply or "\n" in reply:
        return reply
    if named == "unnorm_key" and "RATE_EXCEEDED" in reply:
        return ""  # each is a new session, of which a connection may open five per second
    return "" if f": {named}" in reply else f"does not name {named}: {reply}"


class ActLink:
    """A connection of a client of POST /act, which is opened again when it has ended."""

    def __init__(self, port: int) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", port, PATIENCE_S, source_address=(STRANGER, 0))

    def ask(self, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer; 0 if the connection ended."""
        for _ in range(2):  # a connection that was kept alive may have ended in between
            try:
                self._link.request("POST", "/act", body, {"content-type": "application/json"})
                answer = self._link.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                self._link.close()
        return 0, b""


def _act_problems(
    port: int, kind: str, scene: DistinctObservations, chance: random.Random, count: int
) -> Iterator[str]:
    bad, link = bad_bodies.KINDS[kind], ActLink(port)
    for _ in range(count):
        scene.change()
        good = act_body(scene)
        problem = error_problem(*link.ask(bad.make(good, chance)), bad.field)
        yield problem or act_problem(*link.ask(json.dumps(good).encode()), scene)


def act_body(scene: DistinctObservations) -> dict[str, object]:
    """The current observation, as OpenVLA-OFT's client sends it."""
    image, wrist = (array_json(scene.images[name]) for name in CAMERAS)
    named = {bad_bodies.IMAGE: image, bad_bodies.WRIST: wrist, bad_bodies.STATE: array_json(scene.state)}
    return {**named, bad_bodies.TEXT: INSTRUCTION}


def error_problem(status: int, data: bytes, named: str) -> str:
    """Why an answer is not a JSON object with 4xx whose error names the field; "" if it is."""
    try:
        value = json.loads(data)
        error = json.dumps(value["error"])
    except (ValueError, KeyError, TypeError):
        return f"{status}: {data[:200]!r}"
    if not 400 <= status < 500 or "Traceback" in error or "incident" in error:
        return f"{status}: {error}"
    return "" if named in error else f"does not name {named}: {error}"


def act_problem(status: int, data: bytes, scene: DistinctObservations) -> str:
    """Why an answer is not the chunk of the current observation; "" if it is."""
    if status != http.HTTPStatus.OK:
        return f"after it: {status} {data[:200]!r}"
    chunk = np.array([_row(each) for each in json.loads(data)])
    return "" if np.array_equal(chunk, scene.chunk()) else "after it: another action"


def _row(value: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(value["__numpy__"]), value["dtype"])


def closing() -> int:
    """The number of rejections before a connection is closed, with default limits."""
    with stub_service(1, {}) as service:
        socket, refused = OpenpiLink(service.port("robots")), 0
        deadline = time.monotonic() + PATIENCE_S
        with suppress(OSError):
            try:
                while time.monotonic() < deadline:
                    socket.ask("bad")
                    refused += 1
            except ConnectionClosed as error:
                return refused if error.rcvd is not None and error.rcvd.code == CODE_CLOSED else -1
            finally:
                socket.close()
    return -1
