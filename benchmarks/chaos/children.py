"""Kills, stops and starves the gateway and the chat front: robots must not notice, and callers must soon be answered.

    .venv/bin/python -m benchmarks.chaos children --json FILE

Two robots with the SDK act at 20 Hz over gRPC. Blocks in which both children are killed every 5 s alternate with quiet
ones; then each child in turn is stopped (SIGSTOP), and then left without memory: its limit is lowered to a little more
than it holds, and large bodies with pictures come, from senders at nice 10. Answered again is a GET of /v1/models for
the gateway, a POST of /tokenize for the chat front. A completion of one token, which the worker must compute beside the
robots, is shown too.
"""

from __future__ import annotations

import argparse
import base64
import http
import json
import os
import random
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

from benchmarks.chaos.bodies_attack import NICE
from benchmarks.chaos.interference import (
    QUIET,
    Bars,
    RobotHistory,
    Spans,
    holds,
    sdk_track,
    undisturbed,
    verdict,
    within,
)
from benchmarks.chaos.process_facts import alive, data_size, state, wait_for
from benchmarks.chaos.report import ScenarioReport, parser, progress
from benchmarks.chaos.robots import INSTRUCTION, KillableProcess, http_status, picture, run_until_stopped
from benchmarks.chaos.rules import BoundedFigure, percentile
from benchmarks.chaos.service import ServiceUnderTest, light_policy
from edgeflow_client.types import CameraSpec, ImageFormat

ROBOTS, HZ = 2, 20.0
ROLES = ("gateway", "chat")
COMPLETION = "completion"
ASKED = (*ROLES, COMPLETION)
EVERY_S, KILLS_S, BLOCKS = 5.0, 120.0, 4
KILLED, STOPPED, STARVED = "kills", "stops", "no memory"
BARS_S = {KILLED: 2.5, STOPPED: 5.0, STARVED: 5.0}
AGE_BARS = Bars(rise_ms=3.0, rise_percent=10.0)
PATIENCE_S = 30.0
AGAIN_S = 0.02
SPARE_BYTES = 1 << 20
LARGE_SENDERS, LARGE_S = 6, 2.0
LARGE = CameraSpec("", 1000, 1000, ImageFormat.JPEG)
REQUESTS: dict[str, tuple[str, str, object]] = {
    "gateway": ("GET", "/v1/models", None),
    "chat": ("POST", "/tokenize", {"prompt": "hi"}),
    COMPLETION: ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
}


Answers = dict[str, dict[str, list[float]]]
"""Seconds from a fault, or from a question without one, to the first answer, by kind and role; NaN without
an answer.
"""


def again_s(port: int, asked: str, since_s: float) -> float:
    """Seconds from `since_s` (monotonic) until a small request on a new connection succeeds; NaN if none does."""
    method, path, value = REQUESTS[asked]
    body = json.dumps(value).encode() if value is not None else None
    while (waited_s := time.monotonic() - since_s) < PATIENCE_S:
        if http_status(port, method, path, body, PATIENCE_S - waited_s) == http.HTTPStatus.OK:
            return time.monotonic() - since_s
        time.sleep(AGAIN_S)
    return float("nan")


def main() -> int:
    """Run the scenario; return the exit code."""
    made = parser(__doc__, 3)
    made.add_argument("--seconds", type=float, default=KILLS_S, help="time during which children are killed")
    arguments = made.parse_args()
    report = ScenarioReport("children", arguments)
    spans, outcomes = Spans(), Counter[str]()
    answers: Answers = {kind: {asked: [] for asked in ASKED} for kind in (QUIET, KILLED, STOPPED, STARVED)}
    with light_policy(ROBOTS + 1) as config, ServiceUnderTest(config) as service:
        robots = [KillableProcess(sdk_track, service.address, HZ) for _ in range(ROBOTS)]
        try:
            for robot in robots:
                robot.receive()
            began = time.time()
            with progress() as bar:
                _faults(_FaultTrial(service, spans, answers, outcomes), arguments, bar.track)
            left = [event["state"] for event in service.events("state", began)]
            tracks = [robot.finish() for robot in robots]
            lost = Counter(f"{event['child']}: {event['ended']}" for event in service.events("child_lost", began))
        finally:
            for robot in robots:
                robot.close()
    rows = _rows(tracks, spans, answers)
    rows.append(
        BoundedFigure("times without memory at which a body was refused, or the child ended", outcomes["starved"])
    )
    rows.append(BoundedFigure("times that the service was not ready", len(left), "", 0))
    return report.finish(
        rows,
        spans=[asdict(each) for each in spans.all],
        answered_s=answers,
        holds=[each.holds for each in tracks],
        outcomes=dict(outcomes),
        lost=dict(lost),
    )


@dataclass(frozen=True, slots=True)
class _FaultTrial:
    """The common parts of all faults."""

    service: ServiceUnderTest
    spans: Spans
    answers: Answers
    outcomes: Counter[str]

    @property
    def port(self) -> int:
        return self.service.port("http")


def _faults(trial: _FaultTrial, arguments: argparse.Namespace, shown: Callable[..., Iterable[str]]) -> None:
    generator = random.Random(arguments.seed)
    for asked in ASKED:  # the first answers of all are slower
        again_s(trial.port, asked, time.monotonic())
    block_s = max(arguments.seconds / BLOCKS, EVERY_S)
    blocks = max(round(arguments.seconds / block_s), 1)
    for _ in shown([KILLED] * blocks, description="blocks of kills"):
        _ask_quietly(trial, block_s)
        _kill(trial, block_s, generator)
    for kind, fault in ((STOPPED, _stop), (STARVED, _starve)):
        for _ in shown([kind] * arguments.trials, description=f"{kind} of each child"):
            for role in ROLES:
                fault(trial, role)


def _ask_quietly(trial: _FaultTrial, seconds: float) -> None:
    """A quiet block in which both children are asked as often as they are killed in other blocks."""
    with trial.spans.during(QUIET):
        for _ in range(max(round(seconds / EVERY_S), 1)):
            due = time.monotonic() + EVERY_S
            for asked in ASKED:
                _ask(trial, QUIET, asked, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0))


def _kill(trial: _FaultTrial, seconds: float, generator: random.Random) -> None:
    """Kill both children once every EVERY_S, at a random time."""
    with trial.spans.during(KILLED):
        due = time.monotonic()
        for _ in range(max(round(seconds / EVERY_S), 1)):
            time.sleep(max(due + generator.uniform(0, EVERY_S / 10) - time.monotonic(), 0))
            due += EVERY_S
            at_s = time.monotonic()
            for role in ROLES:
                _end(_pid(trial.service, role))
            asking = [threading.Thread(target=_ask, args=(trial, KILLED, asked, at_s)) for asked in ASKED]
            for each in asking:
                each.start()
            for each in asking:
                each.join()
        time.sleep(max(due - time.monotonic(), 0))


def _ask(trial: _FaultTrial, kind: str, asked: str, since_s: float) -> None:
    trial.answers[kind][asked].append(again_s(trial.port, asked, since_s))


def _pid(service: ServiceUnderTest, role: str) -> int:
    """The child's process id, once there is a child; TimeoutError."""
    if wait_for(lambda: service.child(role) is not None, PATIENCE_S) is None:
        raise TimeoutError(f"no {role} process within {PATIENCE_S:g} s")
    return service.child(role) or 0


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid), PATIENCE_S, 0.001)


def _stop(trial: _FaultTrial, role: str) -> None:
    """Stop a child: only control can end it now."""
    trial.spans.wait(QUIET, EVERY_S)
    with trial.spans.during(STOPPED):
        pid, at_s = _pid(trial.service, role), time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: state(pid) in "TZX", PATIENCE_S, 0.001)
        _ask(trial, STOPPED, role, at_s)


def _starve(trial: _FaultTrial, role: str) -> None:
    """Let a child run out of memory, then wait for the next small answer; a survivor gets its limit back."""
    path, body = ("/v1/act", large_frame()) if role == "gateway" else ("/v1/chat/completions", large_chat())
    with KillableProcess(large_senders, trial.port, path, body) as senders:
        senders.receive()
        trial.spans.wait(QUIET, EVERY_S)
        with trial.spans.during(STARVED):
            statuses = _without_memory(trial, role, senders)
    trial.outcomes.update(f"{role}: {status}" for status in statuses.elements())


def _without_memory(trial: _FaultTrial, role: str, senders: KillableProcess) -> Counter[int]:
    """Lower the limit and let the senders begin; returns the statuses of their answers."""
    pid = _pid(trial.service, role)
    limits = resource.prlimit(pid, resource.RLIMIT_DATA)
    resource.prlimit(pid, resource.RLIMIT_DATA, (data_size(pid) + SPARE_BYTES, limits[1]))
    senders.link.send("begin")
    senders.receive()
    time.sleep(LARGE_S)
    senders.link.send("stop")
    _ask(trial, STARVED, role, time.monotonic())
    ended = trial.service.child(role) != pid
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_DATA, limits)
    statuses: Counter[int] = senders.receive()  # type: ignore[assignment]
    trial.outcomes["starved"] += ended or any(status == 0 or status >= 500 for status in statuses)
    return statuses


def large_senders(link: Connection, port: int, path: str, body: bytes) -> None:
    """Work of a process: send a body on several connections, repeatedly, between two messages of the benchmark. It
    reports that it has started, and the statuses at the end.
    """
    os.nice(NICE)
    statuses, over = Counter[int](), threading.Event()

    def run() -> None:
        while not over.is_set():
            statuses[http_status(port, "POST", path, body, PATIENCE_S)] += 1
            over.wait(AGAIN_S)

    link.send("there")
    link.recv()
    run_until_stopped(link, [run] * LARGE_SENDERS, over.set)
    link.send(statuses)


def large_frame() -> bytes:
    """An observation whose picture takes 3 MB, as often as it is in memory."""
    return json.dumps({"image": base64.b64encode(picture(LARGE)).decode(), "instruction": INSTRUCTION}).encode()


def large_chat() -> bytes:
    """A conversation of 4 MB, and of a few values only."""
    return json.dumps({"messages": [{"role": "user", "content": "hi " * (4 << 20 >> 2)}], "max_tokens": 1}).encode()


def _rows(tracks: Sequence[RobotHistory], spans: Spans, answers: Answers) -> list[BoundedFigure]:
    rows = undisturbed("gRPC robots", tracks, spans.all)
    rows += [row for asked in ASKED for row in plain_rows(asked, QUIET, answers[QUIET][asked])]
    for kind, by_role in answers.items():
        if kind != QUIET and any(span.kind == kind for span in spans.all):
            rows += robots_rows(tracks, spans, kind)
            rows += [row for role in ROLES for row in answer_rows(kind, role, by_role[role])]
            rows += plain_rows(COMPLETION, kind, by_role[COMPLETION])
    between = sum(not _named(at_ns, spans) for track in tracks for at_ns, _ in track.holds)
    rows.append(BoundedFigure("HOLDs between the blocks", between, "", 0))
    rows.append(BoundedFigure("HOLDs in quiet blocks", len(holds(tracks, spans.all, QUIET))))
    return rows


def robots_rows(tracks: Sequence[RobotHistory], spans: Spans, kind: str) -> list[BoundedFigure]:
    """The robots beside faults of this kind."""
    held = BoundedFigure(f"gRPC robots: HOLDs beside {kind}", len(holds(tracks, spans.all, kind)), "", 0)
    return [held, *verdict("gRPC robots", tracks, spans.all, kind, AGE_BARS)]


def answer_rows(kind: str, role: str, seconds: Sequence[float]) -> list[BoundedFigure]:
    """How soon a child answered again; one that never did misses the bar."""
    return [
        BoundedFigure(f"{role}: {kind}", len(seconds)),
        BoundedFigure(f"{role}: answering again after {kind}, p50", percentile(seconds, 50), "s"),
        BoundedFigure(f"{role}: answering again after {kind}, max", percentile(seconds, 100), "s", BARS_S[kind]),
    ]


def plain_rows(asked: str, kind: str, seconds: Sequence[float]) -> list[BoundedFigure]:
    """How soon there is an answer, without a bar: completions wait for what robots leave of the worker."""
    shares = {"p50": 50, "max": 100} if seconds else {}
    return [
        BoundedFigure(f"{asked}: answered, {kind}, {name}", percentile(seconds, at), "s") for name, at in shares.items()
    ]


def _named(at_ns: int, spans: Spans) -> bool:
    return any(within(at_ns, spans.all, kind) for kind in {span.kind for span in spans.all})
