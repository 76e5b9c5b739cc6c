"""Robots that take more than they declared, and what that costs an honest one.

    .venv/bin/python -m benchmarks.chaos cheat --json benchmarks/results/chaos-cheat.json

At the pace of `--profile rtx5090` an honest robot in mode serial sends 5 frames per second. Blocks in which it is alone
alternate with blocks beside a robot that declares 1 Hz and keeps it (for comparison, without a bar); that sends 15 Hz;
that sends a new instruction with every frame, 1,000 resets and 100 second Opens per second; and beside two that send
progressive JPEGs of 2000x2000 at 10 Hz. Those declare 10, 5, 2 and then 1 Hz until they are admitted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.chaos.beside import QUIET, Bars, Spans, Track, bystanders, undisturbed, verdict
from benchmarks.chaos.cheats import big_pictures, in_rate, over_rate, restless
from benchmarks.chaos.report import Report, parser, progress
from benchmarks.chaos.robots import RobotProcess
from benchmarks.chaos.rules import Row
from benchmarks.chaos.service import ServiceUnderTest, light_policy
from edgeflow_client.rpc import control_pb2 as pb

HONEST_HZ = 5.0
PLACES = 4
BLOCK_S, SETTLE_S = 20.0, 2.0
PROFILE = "rtx5090"
HONEST = "one that keeps 1 Hz"
KINDS = {
    HONEST: in_rate,
    "15 times the declared rate": over_rate,
    "new instructions, resets and Opens": restless,
    "two with pictures of 4 MP": big_pictures,
}
BARS = Bars(rise_percent=10.0)


def main() -> int:
    """Run the scenario; return the exit code."""
    made = parser(__doc__, 4)
    made.add_argument("--seconds", type=float, default=BLOCK_S, help="length of a block")
    arguments = made.parse_args()
    report = Report("cheat", arguments)
    spans = Spans()
    heard: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    with (
        light_policy(PLACES, profile=PROFILE) as config,
        ServiceUnderTest(config) as service,
        RobotProcess(bystanders, service.address, 1, HONEST_HZ, pb.MODE_SERIAL) as robot,
    ):
        robot.hear()
        with progress() as bar:
            for kind in bar.track(list(KINDS) * arguments.trials, description="blocks of cheats"):
                spans.wait(QUIET, arguments.seconds)
                with RobotProcess(KINDS[kind], service.address, arguments.seed) as cheat:
                    cheat.hear()
                    time.sleep(min(SETTLE_S, arguments.seconds))
                    spans.wait(kind, arguments.seconds)
                    counted, refused = cheat.finish()
                    heard[kind] += counted + Counter(f"refused: {text}" for text in refused if text)
                    cheat.process.join()
        tracks = robot.finish()
    return report.finish(
        _rows(tracks, spans, heard),
        spans=[asdict(each) for each in spans.all],
        holds=tracks[0].holds,
        heard={kind: dict(each) for kind, each in heard.items()},
    )


def _rows(tracks: Sequence[Track], spans: Spans, heard: dict[str, Counter[str]]) -> list[Row]:
    rows = undisturbed("honest robot", tracks, spans.all)
    for kind, counted in heard.items():
        rows += judged(tracks, spans, kind)
        length_s = sum(span.end_ns - span.start_ns for span in spans.all if span.kind == kind) / 1e9
        rows.append(Row(f"actions per second to {kind}", counted["actions"] / length_s if length_s else 0.0, "/s"))
    return rows


def judged(tracks: Sequence[Track], spans: Spans, kind: str) -> list[Row]:
    """The honest robot's rows; beside another honest one they have no bars."""
    rows = verdict("honest robot", tracks, spans.all, kind, BARS)
    return [Row(row.what, row.value, row.unit) for row in rows] if kind == HONEST else rows
