"""Strangers' large bodies beside robots: what 16 connections of them cost, and what the processes keep of it.

    .venv/bin/python -m benchmarks.chaos bodies --json FILE

A robot with the SDK acts at 20 Hz over gRPC, another one calls POST /v1/act at 10 Hz with a frame of 224x224 each.
Quiet blocks alternate with blocks in which 16 connections of one address send bodies to the HTTP port: objects of
844,991 keys in 8 MiB, the same cut to what the route reads at most, their last bytes together; and chat messages of
65,000 empty parts, as fast as they are answered. --addresses: as many connections from each of several addresses.
The strangers run on this machine, at nice 10, and share its cores; the policy is so small that it leaves them alone.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

from benchmarks.chaos.bodies_attack import NO_ANSWER, SHAPES, body_senders
from benchmarks.chaos.interference import QUIET, Bars, RobotHistory, Spans, sdk_track, undisturbed, verdict
from benchmarks.chaos.process_facts import resident
from benchmarks.chaos.report import ScenarioReport, parser, progress
from benchmarks.chaos.robots import INSTRUCTION, KillableProcess, picture, told_to_stop
from benchmarks.chaos.rules import MIB, BoundedFigure, percentile
from benchmarks.chaos.service import ServiceUnderTest, light_policy
from edgeflow_client.types import CameraSpec, ImageFormat

GRPC_HZ, ACT_HZ = 20.0, 10.0
BLOCK_S, WARM_UP_S = 12.0, 6.0
CONNECTIONS = 16
PLACES = 4
ROBOT_ADDRESS = "127.0.0.100"  # of the robot on HTTP; every address has connections of its own
PATIENCE_S = 10.0
WARM_UP = "warm-up"
FRAME = CameraSpec("", 224, 224, ImageFormat.JPEG)
GRPC_BARS = Bars(rise_ms=10.0)
ACT_BARS = Bars(least_share=0.95, rise_ms=30.0)
CHILD_BAR_MIB = 64.0
CONTROL_BAR_MIB = 1.0


@dataclass(frozen=True, slots=True)
class Size:
    """Resident bytes of a process in a block of this kind."""

    process: str
    kind: str
    pid: int
    bytes: int


def main() -> int:
    """Run the scenario; return the exit code."""
    made = parser(__doc__, 5)
    made.add_argument("--seconds", type=float, default=BLOCK_S, help="length of a block")
    made.add_argument("--addresses", type=int, default=1, help="addresses with 16 connections each")
    arguments = made.parse_args()
    report = ScenarioReport("bodies", arguments)
    spans, sizes, answers = Spans(), list[Size](), {shape: Counter[int]() for shape in SHAPES}
    with (
        light_policy(PLACES) as config,
        ServiceUnderTest(config) as service,
        KillableProcess(sdk_track, service.address, GRPC_HZ) as robot,
        KillableProcess(act_track, service.port("http"), ACT_HZ) as caller,
    ):
        robot.receive(), caller.receive()

        def wait(kind: str, seconds: float) -> None:
            spans.wait(kind, seconds, lambda: sizes.extend(_sizes(service, kind)))

        plan = [WARM_UP, *list(SHAPES) * arguments.trials]
        with progress() as bar:
            for turn, shape in enumerate(bar.track(plan, description="blocks of bodies")):
                warm_up = shape == WARM_UP  # the first block, with all shapes
                wait(WARM_UP if warm_up else QUIET, arguments.seconds)
                seconds = min(arguments.seconds, WARM_UP_S) if warm_up else arguments.seconds
                for sent in SHAPES if warm_up else (shape,):
                    addresses = sources(turn, arguments.addresses)
                    with KillableProcess(body_senders, service.port("http"), sent, addresses, CONNECTIONS) as strangers:
                        strangers.receive()
                        wait(WARM_UP if warm_up else sent, seconds)
                        counted = strangers.finish()
                    if not warm_up:
                        answers[sent] += counted
        tracks = [robot.finish()], [caller.finish()]
    rows = _rows(*tracks, spans, sizes, answers)
    statuses = {shape: {str(status): times for status, times in each.items()} for shape, each in answers.items()}
    return report.finish(
        rows,
        spans=[asdict(each) for each in spans.all],
        largest=largest(sizes),
        answers=statuses,
        holds={"gRPC": tracks[0][0].holds, "/v1/act": tracks[1][0].holds},
    )


def sources(turn: int, count: int) -> tuple[str, ...]:
    """The strangers' addresses in a block; other ones in the next."""
    return tuple(f"127.0.0.{1 + (turn * count + index) % 64}" for index in range(count))


def _sizes(service: ServiceUnderTest, kind: str) -> Iterable[Size]:
    pids = {"control": service.pid, "gateway": service.child("gateway"), "chat": service.child("chat")}
    return [Size(name, kind, pid, resident(pid)) for name, pid in pids.items() if pid]


def _rows(
    robot: Sequence[RobotHistory],
    caller: Sequence[RobotHistory],
    spans: Spans,
    sizes: Sequence[Size],
    answers: Mapping[str, Counter[int]],
) -> list[BoundedFigure]:
    rows = [*undisturbed("gRPC robot", robot, spans.all), *undisturbed("/v1/act robot", caller, spans.all)]
    for shape, statuses in answers.items():
        rows.append(BoundedFigure(f"bodies answered, {shape}", statuses.total() - statuses[NO_ANSWER]))
        rows += verdict("gRPC robot", robot, spans.all, shape, GRPC_BARS)
        rows += verdict("/v1/act robot", caller, spans.all, shape, ACT_BARS)
    rows.append(
        BoundedFigure(
            "control: growth, second half of the attacks", control_growth(sizes) / MIB, "MiB", CONTROL_BAR_MIB
        )
    )
    for name in ("gateway", "chat"):
        rows.append(
            BoundedFigure(f"{name}: most above the quiet size", child_growth(sizes, name) / MIB, "MiB", CHILD_BAR_MIB)
        )
        pids = {size.pid for size in sizes if size.process == name}
        rows.append(BoundedFigure(f"{name}: restarts", len(pids) - 1, "", 0))
    return rows


def largest(sizes: Sequence[Size]) -> dict[str, dict[str, int]]:
    """Bytes by process and kind of block: the largest size of all."""
    found: dict[str, dict[str, int]] = {}
    for size in sizes:
        kinds = found.setdefault(size.process, {})
        kinds[size.kind] = max(kinds.get(size.kind, 0), size.bytes)
    return found


def control_growth(sizes: Sequence[Size]) -> float:
    """Bytes: median of the second half of control's sizes in attacks minus that of the first; warm-up left out."""
    seen = [size.bytes for size in sizes if size.process == "control" and size.kind not in (QUIET, WARM_UP)]
    half = len(seen) // 2
    return percentile(seen[half:], 50) - percentile(seen[:half], 50)


def child_growth(sizes: Sequence[Size], name: str) -> float:
    """Bytes: a child's largest size in an attack, minus its size before the first of them."""
    first = next((size.bytes for size in sizes if size.process == name), None)
    attacked = [size.bytes for size in sizes if size.process == name and size.kind != QUIET]
    return max(attacked) - first if first is not None and attacked else float("nan")


def act_track(link: Connection, port: int, rate_hz: float) -> None:
    """Work of a process: a robot on POST /v1/act, which reports that it acts, and its Track at the end.

    The age of an action is the time from its request to its answer.
    """
    body = json.dumps({"image": base64.b64encode(picture(FRAME)).decode(), "instruction": INSTRUCTION}).encode()
    track, reported, due = RobotHistory(), False, time.monotonic()
    caller = _Caller(port)
    while not told_to_stop(link, max(due - time.monotonic(), 0)):
        due = max(due + 1 / rate_hz, time.monotonic())
        asked_ns = time.monotonic_ns()
        said = caller.ask(body)
        now_ns = time.monotonic_ns()
        if said == "ACT":
            track.actions.append((now_ns, now_ns - asked_ns))
        else:
            track.holds.append((now_ns, said))
        if track.actions and not reported:
            link.send("acting")
            reported = True
    link.send(track)


class _Caller:
    """A connection that stays open, and is opened again after an error."""

    def __init__(self, port: int) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", port, PATIENCE_S, source_address=(ROBOT_ADDRESS, 0))

    def ask(self, body: bytes) -> str:
        """The command of the answer, or what came instead of one."""
        try:
            self._link.request("POST", "/v1/act", body, {"content-type": "application/json"})
            answer = self._link.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._link.close()
            return type(error).__name__
        return str(json.loads(data)["command"]).upper() if answer.status == http.HTTPStatus.OK else str(answer.status)
