"""Soak test: memory, descriptors and threads of the real service under load, over the frames it answered.

    scripts/soak --frames 200000 --json FILE
    scripts/soak --frames 20000 --leak-bytes 256     with an injected leak, which the same rules must catch

Frames count when they were answered with an action. The rules, for front and worker each: median resident memory of
the last 10 % of the frames minus that of 40 to 50 % is at most 8 MiB and 1 %; the Theil-Sen slope from 40 % on is at
most 1 MiB per 100,000 frames. With --leak-bytes the front leaks that much per frame, and the exit code is 0 when that
was caught.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

from benchmarks.chaos.process_facts import held, memory
from benchmarks.chaos.report import ScenarioReport, progress
from benchmarks.chaos.robots import OVERCOMMIT, KillableProcess, RawRobot, at_work
from benchmarks.chaos.rules import (
    EARLY,
    GROWTH_BYTES,
    GROWTH_SHARE,
    MIB,
    SLOPE_BYTES,
    SLOPE_FRAMES,
    BoundedFigure,
    Growth,
    growth,
    percentile,
)
from benchmarks.chaos.service import ServiceUnderTest
from benchmarks.command import options

SAMPLES = 400
FASTEST_S = 0.1  # between samples
STALLED_S = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one moment. Sizes in bytes."""

    seconds: float
    frames: int
    """Number of frames answered with an action so far."""
    resident: int
    highest: int
    proportional: int
    descriptors: int
    threads: int


def main() -> int:
    """Run the scenario; return the exit code."""
    arguments = _arguments()
    report = ScenarioReport("soak", arguments)
    probes = ["--leak-bytes", str(arguments.leak_bytes)] if arguments.leak_bytes else []
    config = {**OVERCOMMIT, "max_sessions": arguments.robots, "mode": "pipelined"}
    with (
        ServiceUnderTest(config, probes) as service,
        KillableProcess(_robots, service.address, arguments.robots, arguments.rate) as robots,
    ):
        robots.receive()
        series = _watch(service, arguments)
        leaked = arguments.leak_bytes * service.metrics()["edgeflow_frames_total"] / answered(service)
        codes = robots.finish(60.0)
        robots.process.join()
    found = {name: growth([s.frames for s in each], [s.resident for s in each]) for name, each in series.items()}
    rows = _rows(series, found, codes, leaked)
    return report.finish(rows, **{name: [asdict(s) for s in each] for name, each in series.items()})


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--frames", type=int, default=200_000)
    length.add_argument("--hours", type=float)
    parser.add_argument("--robots", type=int, default=4)
    parser.add_argument("--rate", type=float, default=40.0, help="frames per second per robot")
    parser.add_argument("--leak-bytes", type=int, default=0, help="positive control: leaked with every frame")
    return parser.parse_args()


def _watch(service: ServiceUnderTest, arguments: argparse.Namespace) -> dict[str, list[Sample]]:
    """Sample until the frames or the hours are reached; TimeoutError when no frame is answered any more."""
    hours_s = arguments.hours * 3600 if arguments.hours else math.inf
    frames_s = arguments.frames / (arguments.robots * arguments.rate)
    every_s = max((hours_s if arguments.hours else frames_s) / SAMPLES, FASTEST_S)
    pids = {"front": service.pid, "worker": service.worker()}
    series: dict[str, list[Sample]] = {name: [] for name in pids}
    started, first = time.monotonic(), answered(service)
    frames, moved_s, elapsed_s = 0, 0.0, 0.0
    with progress() as bar:
        task = bar.add_task("frames answered", total=None if arguments.hours else arguments.frames)
        while elapsed_s < hours_s and (arguments.hours or frames < arguments.frames):
            time.sleep(every_s)
            elapsed_s = time.monotonic() - started
            before, frames = frames, answered(service) - first
            moved_s = elapsed_s if frames > before else moved_s
            if elapsed_s - moved_s > max(STALLED_S, 2 * every_s):
                text = f"no frame was answered for {STALLED_S:g} s after {frames} frames; the service's log:"
                raise TimeoutError(f"{text}\n{service.log_end()}")
            for name, pid in pids.items():
                series[name].append(sample(pid, elapsed_s, frames))
            bar.update(task, completed=frames)
    return series


def answered(service: ServiceUnderTest) -> int:
    """The frames answered with an action so far."""
    return int(service.metrics()["edgeflow_frame_e2e_seconds_count"])


def sample(pid: int, elapsed_s: float, frames: int) -> Sample:
    """A sample of one process."""
    bytes_of, holds = memory(pid), held(pid)
    sizes = bytes_of["VmRSS"], bytes_of["VmHWM"], bytes_of["Pss"]
    return Sample(elapsed_s, frames, *sizes, holds.descriptors, holds.threads)


def _rows(
    series: dict[str, list[Sample]], found: dict[str, Growth], codes: Sequence[str], leaked: float
) -> list[BoundedFigure]:
    last = series["front"][-1]
    rows = [
        BoundedFigure("frames answered", last.frames),
        BoundedFigure("frames per second", last.frames / last.seconds),
        BoundedFigure("robots that lost their stream", sum(code != "OK" for code in codes), "", 0),
    ]
    for name, each in found.items():
        rows += process_rows(name, each, series[name], judged=not leaked)
    if leaked:
        rows.append(BoundedFigure("leak put in, in 100,000 answered frames", leaked * SLOPE_FRAMES / MIB, "MiB"))
        rows.append(BoundedFigure("leak put in and not caught", float(found["front"].bounded), "", 0))
        rows.append(BoundedFigure("worker said to grow, which has no leak", float(not found["worker"].bounded)))
    return rows


def process_rows(name: str, found: Growth, samples: list[Sample], judged: bool) -> list[BoundedFigure]:
    """The figures of one process. judged: compared with the targets."""

    def row(what: str, value: float, unit: str, bar: float) -> BoundedFigure:
        return BoundedFigure(f"{name}: {what}", value, unit, bar if judged else None)

    return [
        BoundedFigure(f"{name}: resident, median of 40 to 50 %", found.early_bytes / MIB, "MiB"),
        BoundedFigure(f"{name}: resident, highest", samples[-1].highest / MIB, "MiB"),
        row("growth", found.growth_bytes / MIB, "MiB", GROWTH_BYTES / MIB),
        row("growth", 100 * found.share, "%", 100 * GROWTH_SHARE),
        row("slope in 100,000 frames", found.slope_bytes / MIB, "MiB", SLOPE_BYTES / MIB),
        row("more descriptors", _more([s.descriptors for s in samples]), "", 0),
        row("more threads", _more([s.threads for s in samples]), "", 0),
    ]


def _more(counts: list[int]) -> float:
    """Median of the last tenth minus that of the early window used for memory."""
    low, high = (int(share * len(counts)) for share in EARLY)
    return percentile(counts[-max(len(counts) // 10, 1) :], 50) - percentile(counts[low:high], 50)


def _robots(link: Connection, address: str, count: int, rate_hz: float) -> None:
    robots = [RawRobot(address, rate_hz, keep=False) for _ in range(count)]
    at_work(link, robots)
    link.send([robot.code for robot in robots])
