"""Cost of strangers to the robots: slow sockets, calls that are reset at once, calls without a token.

    .venv/bin/python -m benchmarks.chaos strangers --json FILE

Two robots act at 20 Hz. Blocks with 500 slow sockets on both ports, and later blocks with a flood of resets, alternate
with quiet blocks; the ages of the robots' actions are compared between them. The flood comes from the same machine and
shares its cores. Finally a service that requires tokens is called without one, over connections that are already open.
"""

from __future__ import annotations

import http.client
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from benchmarks.chaos.attacks import rapid_resets, slow_sockets
from benchmarks.chaos.interference import QUIET, RobotHistory, Spans, ages_ms, bystanders
from benchmarks.chaos.process_facts import held, memory, wait_for
from benchmarks.chaos.report import ScenarioReport, parser, progress
from benchmarks.chaos.robots import ACT, OVERCOMMIT, KillableProcess
from benchmarks.chaos.rules import MIB, BoundedFigure, percentile, rise_percent, spread
from benchmarks.chaos.service import ServiceUnderTest
from edgeflow.service.security.auth import Role, new_token
from edgeflow_client.rpc import control_pb2 as pb

ROBOTS, HZ = 2, 20.0
SOCKETS, RESETS_HZ = 500, 10_000
BLOCK_S, SETTLE_S = 12.0, 20.0
REFUSALS = 1000
ATTACKED = "attacked"
CONFIG = {"max_sessions": ROBOTS, **OVERCOMMIT}


@dataclass(slots=True)
class AttackCost:
    """Cost of an attack."""

    spans: Spans = field(default_factory=Spans)
    did: list[float] = field(default_factory=list)
    """Reports of the attackers."""
    descriptors: int = 0  # of the front, at most
    left: int = 0  # descriptors more than before, once they were gone
    resident: list[int] = field(default_factory=list)  # bytes of the front after each
    calls: float = 0.0  # that the front counted


def main() -> int:
    """Run the scenario; return the exit code."""
    arguments = parser(__doc__, 3).parse_args()
    report = ScenarioReport("strangers", arguments)
    with ServiceUnderTest(CONFIG) as service, KillableProcess(bystanders, service.address, ROBOTS, HZ) as robots:
        robots.receive()
        grpc_port, http_port = service.port("grpc"), service.port("http")
        slow = _blocks(
            service,
            arguments.trials,
            lambda: KillableProcess(slow_sockets, grpc_port, http_port, SOCKETS),
            "slow sockets",
        )
        flood = _blocks(
            service, arguments.trials, lambda: KillableProcess(rapid_resets, grpc_port, RESETS_HZ), "resets"
        )
        tracks = robots.finish()
    refused = _refusals()
    grown = flood.resident[-1] - flood.resident[0]
    rows = [
        BoundedFigure("slow sockets", SOCKETS),
        BoundedFigure("slow sockets closed by the service, per second", percentile(slow.did, 50)),
        *_ages("slow sockets", tracks, slow, 10),
        BoundedFigure("front descriptors beside them, at most", slow.descriptors),
        BoundedFigure("front descriptors more, once they are gone", slow.left, "", 0),
        BoundedFigure("calls reset at once, per second", percentile(flood.did, 50)),
        BoundedFigure("calls among them that reached the front's code", flood.calls),
        *_ages("resets", tracks, flood, 20),
        BoundedFigure("front's growth by resets, after the first of them", grown / MIB, "MiB", 32),
        BoundedFigure("front descriptors more after the resets", flood.left, "", 0),
        *[row for name, took_ms in refused.items() for row in spread(f"{name} without a token", took_ms, "ms", p99=5)],
    ]
    slow_spans, flood_spans = (
        [(span.start_ns, span.end_ns, span.kind == ATTACKED) for span in each.spans.all] for each in (slow, flood)
    )
    ages = [pair for track in tracks for pair in track.actions]
    return report.finish(rows, slow=slow_spans, resets=flood_spans, ages=ages, refused_ms=refused)


def _blocks(service: ServiceUnderTest, turns: int, attack: Callable[[], KillableProcess], what: str) -> AttackCost:
    """Alternate quiet and attacked blocks."""
    found, counted = AttackCost(), _calls(service)

    def sample() -> None:
        found.descriptors = max(found.descriptors, held(service.pid).descriptors)

    with progress() as bar:
        for _ in bar.track(range(turns), description=what):
            found.spans.wait(QUIET, BLOCK_S)
            before = held(service.pid).descriptors
            with attack() as stranger:
                stranger.receive()
                found.spans.wait(ATTACKED, BLOCK_S, sample)
                found.did.append(stranger.finish())
                stranger.process.join()
            wait_for(lambda before=before: held(service.pid).descriptors <= before, SETTLE_S, 0.1)  # type: ignore[misc]
            found.left = max(found.left, held(service.pid).descriptors - before)
            found.resident.append(memory(service.pid)["VmRSS"])
    found.calls = _calls(service) - counted
    return found


def _calls(service: ServiceUnderTest) -> float:
    return service.metrics().get("edgeflow_rpc_total", 0.0)


def _ages(name: str, tracks: Sequence[RobotHistory], blocks: AttackCost, bar: float) -> list[BoundedFigure]:
    attacked, quiet = (ages_ms(tracks, blocks.spans.all, kind) for kind in (ATTACKED, QUIET))
    return [
        BoundedFigure(f"age of the robots' actions, p99, no {name}", percentile(quiet, 99), "ms"),
        BoundedFigure(f"age of the robots' actions, p99, beside {name}", percentile(attacked, 99), "ms"),
        BoundedFigure(f"rise of the p99 by {name}", rise_percent(attacked, quiet, 99), "%", bar),
    ]


def _refusals() -> dict[str, list[float]]:
    """Milliseconds from calls without a token to their rejection, by kind of call."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens.json"
        new_token(str(tokens), "arm-1", [Role.CONTROL.value])
        with ServiceUnderTest({"tokens_file": str(tokens)}) as service:
            with grpc.insecure_channel(service.address) as channel:
                act = channel.unary_unary(ACT, pb.ActRequest.SerializeToString, pb.ActResponse.FromString)
                by_grpc = [_refused_ms(lambda: _is_refused(act)) for _ in range(REFUSALS)]
            web = http.client.HTTPConnection("127.0.0.1", service.port("http"))
            by_http = [_refused_ms(lambda: _is_refused_by_http(web)) for _ in range(REFUSALS)]
            web.close()
    return {"gRPC call": by_grpc, "HTTP request": by_http}


def _refused_ms(call: Callable[[], bool]) -> float:
    started_ns = time.perf_counter_ns()
    if not call():
        raise RuntimeError("a stranger was let in")
    return (time.perf_counter_ns() - started_ns) / 1e6


def _is_refused(act: grpc.UnaryUnaryMultiCallable) -> bool:
    try:
        act(pb.ActRequest())
    except grpc.RpcError as error:
        return bool(error.code() is grpc.StatusCode.UNAUTHENTICATED)
    return False


def _is_refused_by_http(web: http.client.HTTPConnection) -> bool:
    web.request("GET", "/v1/models")
    answer = web.getresponse()
    answer.read()
    return answer.status == http.HTTPStatus.UNAUTHORIZED
