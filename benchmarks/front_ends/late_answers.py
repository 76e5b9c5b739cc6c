"""Answers that come after their request was abandoned: none may be taken for an answer to the next request.

    .venv/bin/python -m benchmarks.front_ends late-answers --json FILE

Some passes of the stub policy take about as long as the robots' process waits for control, from slightly less to much
more. openpi clients and clients of POST /act ask without a pause, each time with another image, and compare every
answer with the right one.
"""

from __future__ import annotations

import http
import json
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from websockets.exceptions import WebSocketException

from benchmarks.chaos.report import ScenarioReport, progress
from benchmarks.chaos.robots import KillableProcess, told_to_stop
from benchmarks.chaos.rules import BoundedFigure
from benchmarks.command import options
from benchmarks.front_ends import bad_bodies
from benchmarks.front_ends.bad_frames import ActLink, act_body, act_problem
from benchmarks.front_ends.openpi_robot import CAMERAS, DistinctObservations, OpenpiLink, is_right, stub_service
from edgeflow.service.frontends.control import SLACK_S

TIMEOUT_MS = 300
LATE_S = tuple(TIMEOUT_MS / 1000 + offset for offset in (-0.02, 0.0, 0.02, 0.2, SLACK_S, SLACK_S + 0.3))
EVERY = 12  # passes
SIDE = 32
OPENPI, ACT = 2, 2
FINISH_S = 60.0


@dataclass(slots=True)
class Answered:
    """The record of a client: its requests by outcome."""

    got: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    """Number of actions that belong to other requests."""


def main() -> int:
    """Run the section; return the exit code."""
    made = options(__doc__)
    made.add_argument("--seconds", type=float, default=180.0)
    arguments = made.parse_args()
    report = ScenarioReport("late-answers", arguments)
    config = {
        "timing": {"act_timeout_ms": TIMEOUT_MS, "worker_progress_ms": 10_000},
        "frontends": {"openpi": {"period_ms": 20}, "openvla": {"cameras": {CAMERAS[0]: bad_bodies.IMAGE}}},
        "limits": {"rejected_frames": 100_000},
    }
    with stub_service(OPENPI + ACT, config, late_every=EVERY, late_s=LATE_S) as service, ExitStack() as stack:
        works = {"openpi": [openpi_answers] * OPENPI, "/act": [act_answers] * ACT}
        clients = [
            (who, stack.enter_context(KillableProcess(work, service.port("robots"), seed)))
            for who, each in works.items()
            for seed, work in enumerate(each)
        ]
        with progress() as bar:
            for _ in bar.track(range(round(arguments.seconds)), description="late answers"):
                time.sleep(1.0)
        for _, client in clients:
            client.link.send("stop")
        found: dict[str, list[Answered]] = {who: [] for who in works}
        for who, client in clients:
            found[who].append(client.receive(FINISH_S))  # type: ignore[arg-type]
    rows, samples = [], {}
    for who, each in found.items():
        got = sum((one.got for one in each), Counter[str]())
        samples[who] = dict(got)
        rows += [
            BoundedFigure(f"{who}: requests", got.total()),
            BoundedFigure(f"{who}: actions", got["action"]),
            BoundedFigure(f"{who}: given up", got.total() - got["action"]),
            BoundedFigure(f"{who}: given up too rarely to say anything", float(got.total() == got["action"]), "", 0),
            BoundedFigure(f"{who}: actions of other requests", sum(one.wrong for one in each), "", 0),
        ]
    return report.finish(rows, got=samples)


def openpi_answers(link: Connection, port: int, seed: int) -> None:
    """Work of a process: an openpi client that asks without a pause; its record is sent at the end."""
    seen, scene, socket = Answered(), DistinctObservations(seed, SIDE), OpenpiLink(port)
    while not told_to_stop(link):
        scene.change()
        try:
            reply = socket.ask(scene.message())
        except (OSError, WebSocketException) as error:
            seen.got[type(error).__name__] += 1
            with suppress(OSError, WebSocketException):
                socket = OpenpiLink(port)
            continue
        if isinstance(reply, str):
            seen.got[reply.partition(":")[0]] += 1
        else:
            seen.got["action"] += 1
            seen.wrong += not is_right(reply, scene)
    link.send(seen)
    socket.close()


def act_answers(link: Connection, port: int, seed: int) -> None:
    """Work of a process: the same with POST /act."""
    seen, scene, client = Answered(), DistinctObservations(seed + OPENPI, SIDE), ActLink(port)
    while not told_to_stop(link):
        scene.change()
        status, data = client.ask(json.dumps(act_body(scene)).encode())
        if status == http.HTTPStatus.OK:
            seen.got["action"] += 1
            seen.wrong += bool(act_problem(status, data, scene))
        else:
            seen.got[str(status)] += 1
    link.send(seen)
