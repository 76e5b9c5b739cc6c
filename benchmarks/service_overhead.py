"""The time that the service adds to the model's: one frame at a time through `edgeflow serve`.

    .venv/bin/python -m benchmarks.service_overhead --json benchmarks/results/service-overhead-cpu.json

Overhead is the age of an action at the client minus the worker's inference time. Its parts: transport (client, gRPC,
loopback, both ways), decode (JPEG), queue (in front and worker), hand-over (everything else inside the service: the
socket to the worker and back, threads, the event loop).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.command import keep, options
from benchmarks.machine import machine_facts
from benchmarks.serving import serving
from edgeflow.loadtest.command import run_plan
from edgeflow.loadtest.results import results_of
from edgeflow.loadtest.robots.frames import frames_for
from edgeflow.loadtest.robots.ledger import FrameRecord
from edgeflow.loadtest.robots.plan import Closed, LoadPlan, Session, parse_size
from edgeflow.loadtest.summary import received_of
from edgeflow.types import CameraSpec, ImageFormat, Mode

BARS_MS = {"p50": 3.0, "p99": 10.0}
SHARES = {"p50": 50, "p90": 90, "p99": 99, "p99.9": 99.9, "max": 100}


def main() -> None:
    """Measure and print; exit code 1 when a target is missed."""
    arguments = _arguments()
    camera = CameraSpec("camera", *parse_size(arguments.camera), ImageFormat(arguments.format))
    with serving({"model": arguments.model, "chat": {"enabled": False}}) as service:
        session = Session(
            cameras=(camera,), instructions=("grasp the red handle",), control_period_s=0.05, mode=Mode.SERIAL
        )
        plan = LoadPlan(
            address=service.address,
            session=session,
            pattern=Closed(),
            warm_up_s=arguments.warm_up,
            count=arguments.frames,
        )
        run = run_plan(plan, frames_for((camera,), arguments.images, plan.distinct, plan.seed), None)
    parts = parts_ms(received_of(run, run.ledgers[0]))
    figures = {
        name: {share: float(np.percentile(values, point)) for share, point in SHARES.items()}
        for name, values in parts.items()
    }
    for name, figure in figures.items():
        print(f"{name:>10}: " + ", ".join(f"{share} {value:.2f}" for share, value in figure.items()) + " ms")
    met = {share: figures["overhead"][share] <= bar for share, bar in BARS_MS.items()}
    for share, bar in BARS_MS.items():
        print(f"overhead {share}: target {bar:g} ms: {'met' if met[share] else 'MISSED'}")
    generator = results_of(run, {}).generator
    facts = {**machine_facts(), "frames": len(parts["overhead"]), "camera": arguments.camera}
    facts |= {
        "format": arguments.format,
        "pictures": "recorded" if arguments.images else "synthetic",
        "generator_lag_p99_ms": generator.lag_ms.p99,
    }
    report = {**facts, "milliseconds": figures, "bars_ms": BARS_MS, "met": met}
    keep(arguments.json, report)
    raise SystemExit(0 if all(met.values()) else 1)


def parts_ms(frames: list[FrameRecord]) -> dict[str, list[float]]:
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
    parser.add_argument("--frames", type=int, default=2000)
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds")
    parser.add_argument("--camera", default="640x480")
    parser.add_argument("--format", default="jpeg", choices=[each.value for each in ImageFormat])
    parser.add_argument("--model", default="demo", help="checkpoint directory, or demo (the embedded policy)")
    parser.add_argument("--images", type=Path, help="folder of camera images (default: synthetic, with noise)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
