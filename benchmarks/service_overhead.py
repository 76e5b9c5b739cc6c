"""The time that the service adds to the model's: one frame at a time through `edgeflow serve`, JPEG and raw.

    .venv/bin/python -m benchmarks.service_overhead --json FILE

Overhead is the age of an action at the client minus the worker's inference time. Its parts: transport (client, gRPC,
loopback, both ways), decode (JPEG), queue (in front and worker), hand-over (everything else inside the service: the
socket to the worker and back, threads, the event loop). Control's loop is the processor time of its thread per frame,
beyond what it takes while nothing happens; it holds up all other robots.

The floor of both is what gRPC alone takes: a bare server in Python that gets the same frames (benchmarks/bare_grpc.py).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bare_grpc import bare_grpc
from benchmarks.command import keep, machine_facts, options
from benchmarks.serving import BenchmarkedService, serving
from edgeflow_client.connection.wire import SessionSettings
from edgeflow_client.loadtest.command import run_plan
from edgeflow_client.loadtest.results import results_of
from edgeflow_client.loadtest.robots.frames import frames_for
from edgeflow_client.loadtest.robots.ledger import SentFrame
from edgeflow_client.loadtest.robots.plan import ClosedLoopPlan, LoadPlan
from edgeflow_client.loadtest.summary import received_of
from edgeflow_client.types import CameraSpec, ImageFormat, Mode

CASES = {
    "640x480 JPEG": (CameraSpec("camera", 640, 480, ImageFormat.JPEG), {"p50": 3.0, "p99": 10.0}),
    "640x480 raw": (CameraSpec("camera", 640, 480, ImageFormat.RGB8), {"p50": 1.9, "p99": 10.0, "loop": 0.4}),
    "320x240 raw": (CameraSpec("camera", 320, 240, ImageFormat.RGB8), {}),
}
"""Cameras, and the targets in milliseconds: shares of the overhead, and the mean of control's loop."""
SHARES = {"p50": 50, "p90": 90, "p99": 99, "p99.9": 99.9, "max": 100}
IDLE_S = 5.0


def main() -> None:
    """Measure and print; exit code 1 when a target is missed."""
    arguments = _arguments()
    with serving({"model": arguments.model, "chat": {"enabled": False}}) as service:
        before_ns = service.loop_ns()
        time.sleep(IDLE_S)
        idle = (service.loop_ns() - before_ns) / (IDLE_S * 1e9)
        cases = {name: _case(service, camera, idle, arguments) for name, (camera, _) in CASES.items()}
    with bare_grpc() as server:
        floors = {name: _floor(server, camera, arguments) for name, (camera, _) in CASES.items()}
    met: dict[str, dict[str, bool]] = {}
    for name, (_, bars) in CASES.items():
        case = cases[name]
        print(f"{name}, {case['frames']} frames")
        for part, figure in case["milliseconds"].items():
            print(f"{part:>12}: " + ", ".join(f"{share} {value:.2f}" for share, value in figure.items()) + " ms")
        found = {**case["milliseconds"]["overhead"], "loop": case["loop_ms"]}
        print(f"{'loop':>12}: mean {found['loop']:.2f} ms")
        print(f"{'bare gRPC':>12}: p50 {floors[name]['p50']:.2f} ms, loop {floors[name]['loop']:.2f} ms")
        met[name] = {bar: found[bar] <= most for bar, most in bars.items()}
        for bar, most in bars.items():
            print(f"{bar:>12}: target {most:g} ms: {'met' if met[name][bar] else 'MISSED'}")
    facts = {**machine_facts(), "pictures": "recorded" if arguments.images else "synthetic", "idle_loop_share": idle}
    bars_ms = {name: bars for name, (_, bars) in CASES.items()}
    keep(arguments.json, {**facts, "cases": cases, "bare_grpc_ms": floors, "bars_ms": bars_ms, "met": met})
    raise SystemExit(0 if all(all(each.values()) for each in met.values()) else 1)


def _case(
    service: BenchmarkedService, camera: CameraSpec, idle: float, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Frames of one kind. idle: the share of a processor that control's loop takes while nothing happens."""
    session = SessionSettings(cameras=(camera,), control_period_s=0.05, mode=Mode.SERIAL)
    plan = LoadPlan(
        address=service.address,
        session=session,
        pattern=ClosedLoopPlan(),
        warm_up_s=arguments.warm_up,
        count=arguments.frames,
    )
    frames = frames_for((camera,), arguments.images, plan.distinct, plan.seed)
    before_ns, began_ns = service.loop_ns(), time.monotonic_ns()
    run = run_plan(plan, frames, None)
    busy_ns = service.loop_ns() - before_ns - idle * (time.monotonic_ns() - began_ns)
    parts = parts_ms(received_of(run, run.ledgers[0]))
    return {
        "frames": len(parts["overhead"]),
        "milliseconds": {
            part: {share: float(np.percentile(values, point)) for share, point in SHARES.items()}
            for part, values in parts.items()
        },
        "loop_ms": busy_ns / len(run.ledgers[0].frames) / 1e6,
        "generator_lag_p99_ms": results_of(run, {}).generator.lag_ms.p99,
    }


def _floor(server: BenchmarkedService, camera: CameraSpec, arguments: argparse.Namespace) -> dict[str, float]:
    """The overhead and the loop's time of a bare server, in milliseconds."""
    case = _case(server, camera, 0.0, arguments)
    return {"p50": case["milliseconds"]["overhead"]["p50"], "loop": case["loop_ms"]}


def parts_ms(frames: list[SentFrame]) -> dict[str, list[float]]:
    """Per frame, in milliseconds: overhead and its parts, then inference and the whole age."""
    parts: dict[str, list[float]] = {}
    for frame in frames:
        times = frame.timings
        inside_ns = times.decode_ns + times.queue_ns + times.inference_ns
        each = {
            "overhead": frame.age_ns - times.inference_ns,
            "transport": frame.age_ns - frame.server_ns,
            "decode": times.decode_ns,
            "queue": times.queue_ns,
            "hand-over": frame.server_ns - inside_ns,
            "inference": times.inference_ns,
            "age": frame.age_ns,
        }
        for name, value_ns in each.items():
            parts.setdefault(name, []).append(value_ns / 1e6)
    return parts


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--frames", type=int, default=2000, help="of each kind")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds")
    parser.add_argument("--model", default="demo", help="checkpoint directory, or demo (the embedded policy)")
    parser.add_argument("--images", type=Path, help="folder of camera images (default: synthetic, with noise)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
