"""A gRPC robot at 20 Hz, alone and beside eight openpi clients at 10 Hz, in turn.

    .venv/bin/python -m benchmarks.front_ends beside-grpc --json FILE

All of them send two raw images of 224x224 and a state of 8 numbers, all different, and every answer of the openpi
clients is compared with the right one. The stub policy takes a millisecond for a pass.
"""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.chaos.interference import QUIET, Bars, RobotHistory, Spans, holds, undisturbed, verdict
from benchmarks.chaos.report import ScenarioReport, parser, progress
from benchmarks.chaos.robots import KillableProcess
from benchmarks.chaos.rules import BoundedFigure, spread
from benchmarks.front_ends.openpi_robot import RobotRecord, grpc_track, openpi_track, stub_service

GRPC_HZ, OPENPI_HZ, CLIENTS = 20.0, 10.0, 8
PASS_S = 0.001
BLOCK_S, WARM_UP_S, FINISH_S = 15.0, 3.0, 60.0
BESIDE, WARM_UP = "openpi clients", "warm-up"
BARS = Bars(least_share=0.98, rise_percent=10.0)


def main() -> int:
    """Run the section; return the exit code."""
    made = parser(__doc__, 4)
    made.add_argument("--seconds", type=float, default=BLOCK_S, help="length of a block")
    made.add_argument("--clients", type=int, default=CLIENTS)
    arguments = made.parse_args()
    report, spans, kept = ScenarioReport("beside-grpc", arguments), Spans(), list[RobotRecord]()
    with (
        stub_service(arguments.clients + 1, {}, pass_s=PASS_S) as service,
        KillableProcess(grpc_track, service.address, GRPC_HZ) as robot,
    ):
        robot.receive()
        spans.wait(WARM_UP, WARM_UP_S)
        with progress() as bar:
            for _ in bar.track(range(arguments.trials), description=BESIDE):
                spans.wait(QUIET, arguments.seconds)
                kept += _beside(service.port("robots"), spans, arguments.clients, arguments.seconds)
        track: RobotHistory = robot.finish(FINISH_S)
    rows = [
        *undisturbed("gRPC robot", [track], spans.all),
        *verdict("gRPC robot", [track], spans.all, BESIDE, BARS),
        BoundedFigure(f"gRPC robot: HOLDs beside {BESIDE}", len(holds([track], spans.all, BESIDE)), "", 0),
        *answers_rows("openpi clients", kept),
    ]
    return report.finish(rows, holds=track.holds, openpi_holds=[each.track.holds for each in kept])


def answers_rows(who: str, kept: list[RobotRecord]) -> list[BoundedFigure]:
    """How fast openpi clients were answered, how many of their requests, and whether correctly."""
    acted = sum(len(each.track.actions) for each in kept)
    asked = sum(each.asked for each in kept)
    took_ms = [age / 1e6 for each in kept for _, age in each.track.actions]
    return [
        *spread(f"{who}: round trip", took_ms, "ms"),
        BoundedFigure(f"{who}: requests", asked),
        BoundedFigure(f"{who}: requests without an action", asked - acted, "", 0),
        BoundedFigure(f"{who}: wrong actions", sum(each.wrong for each in kept), "", 0),
    ]


def _beside(port: int, spans: Spans, count: int, seconds: float) -> list[RobotRecord]:
    with ExitStack() as stack:
        clients = [
            stack.enter_context(KillableProcess(openpi_track, port, OPENPI_HZ, "127.0.0.1", seed))
            for seed in range(count)
        ]
        for client in clients:
            client.receive()
        spans.wait(BESIDE, seconds)
        for client in clients:
            client.link.send("stop")
        return [client.receive(FINISH_S) for client in clients]  # type: ignore[misc]
