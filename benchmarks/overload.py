"""Overload: ten times more frames than can be served must raise neither the age of actions nor memory.

    .venv/bin/python -m benchmarks.overload --json FILE

The service is held to a pass time, so that its rate is known: pipelined, one frame per pass. The load is first almost
that rate, then ten times as much. The newest frame may wait for at most one pass longer than at full rate.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.command import keep, machine_facts, options
from benchmarks.serving import serving, watching
from edgeflow_client.connection.wire import SessionSettings
from edgeflow_client.loadtest.command import run_plan
from edgeflow_client.loadtest.results import Results, results_of
from edgeflow_client.loadtest.robots.frames import frames_for
from edgeflow_client.loadtest.robots.plan import Fixed, LoadPlan, parse_size
from edgeflow_client.types import CameraSpec, ImageFormat, Mode

FULL = 0.95  # of the service's rate: at all of it, a queue of one is never empty
MARGIN_MS = 10.0
GROWTH_BYTES = 16 << 20


def main() -> None:
    """Measure and print; exit code 1 when a target is missed."""
    arguments = _arguments()
    rate_hz = 1000 / arguments.pass_ms
    with tempfile.TemporaryDirectory() as folder, serving(_config(Path(folder), arguments.pass_ms)) as service:
        full = _run(service.address, FULL * rate_hz, arguments.full_seconds, arguments.camera)
        with watching(service) as growth:
            over = _run(service.address, arguments.times * rate_hz, arguments.seconds, arguments.camera)
    bar_ms = full.total.age_ms.p99 + arguments.pass_ms + MARGIN_MS
    met = {
        "age": over.total.age_ms.p99 <= bar_ms,
        "memory": all(size <= GROWTH_BYTES for size in growth.values()),
        "accounted": not over.total.frames.unanswered,
    }
    _print(full, over, bar_ms, growth)
    print(", ".join(f"{name}: {'met' if each else 'MISSED'}" for name, each in met.items()))
    report = {**machine_facts(), "pass_ms": arguments.pass_ms, "times": arguments.times, "age_bar_ms": bar_ms}
    report |= {"growth_bytes": growth, "full": _figures(full), "overload": _figures(over), "met": met}
    keep(arguments.json, report)
    raise SystemExit(0 if all(met.values()) else 1)


def _config(folder: Path, pass_ms: float) -> dict[str, Any]:
    """A configuration whose limits admit the overload: the test is of the mailbox, not of the rate limit before it."""
    profile = folder / "profile.json"
    times = {"prefill_ms": pass_ms, "decode_ms": pass_ms / 5, "packed_ms": pass_ms}
    profile.write_text(json.dumps({"name": f"{pass_ms:g} ms per pass", **times}))
    return {"profile": str(profile), "limits": {"rate_hz": 1000.0}, "chat": {"enabled": False}}


def _run(address: str, offered_hz: float, seconds: float, size: str) -> Results:
    camera = CameraSpec("camera", *parse_size(size), ImageFormat.JPEG)
    session = SessionSettings(cameras=(camera,), control_period_s=1 / offered_hz, mode=Mode.PIPELINED)
    plan = LoadPlan(address=address, session=session, pattern=Fixed(offered_hz), warm_up_s=3.0, duration_s=seconds)
    return results_of(run_plan(plan, frames_for((camera,), None, plan.distinct, plan.seed), None), {})


def _print(full: Results, over: Results, bar_ms: float, growth: dict[str, int]) -> None:
    for name, each in (("full rate", full), ("overload", over)):
        frames, age = each.total.frames, each.total.age_ms
        counts = f"{frames.offered} offered, {frames.acted} acted, {frames.superseded} superseded"
        print(f"{name}: {counts}; age p50 {age.p50:.1f}, p99 {age.p99:.1f}, max {age.max:.1f} ms")
    print(f"target for age p99 under overload: {bar_ms:.1f} ms")
    print("memory growth: " + ", ".join(f"{size / (1 << 20):.1f} MiB ({name})" for name, size in growth.items()))
    print(f"load generator: frames sent {over.generator.lateness_ms.p99:.1f} ms late (p99)")


def _figures(results: Results) -> dict[str, Any]:
    total = results.total
    times = {"age_ms": asdict(total.age_ms), "service_ms": asdict(total.service_ms)}
    lateness = {"generator_lateness_p99_ms": results.generator.lateness_ms.p99}
    return {"seconds": results.seconds, "fps": total.fps, "frames": asdict(total.frames), **times, **lateness}


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--pass-ms", type=float, default=50.0, help="duration of every pass")
    parser.add_argument("--times", type=float, default=10.0, help="load, as a multiple of the rate that can be served")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the overload")
    parser.add_argument("--full-seconds", type=float, default=30.0, help="length of the full-rate run before it")
    parser.add_argument("--camera", default="640x480")
    return parser.parse_args()


if __name__ == "__main__":
    main()
