"""Two closed-loop robots that declare 50 ms against the same two when they declare what they really send.

    .venv/bin/python -m benchmarks.early_frames --json FILE

Each robot sends its next frame when it has its answer, much sooner than 50 ms. Frames before their turn take gaps, so
the device should not be idle while one waits: at least SHARE of the actions, at most LATER_MS older (p50), by the
median over rounds. A round is a robot by itself and both pairs in turn, on one service with the embedded policy; the
pairs change places from round to round. Needs two idle cores.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from benchmarks.command import keep, machine_facts, options
from benchmarks.serving import serving
from edgeflow_client.connection.wire import SessionSettings
from edgeflow_client.loadtest.command import run_plan
from edgeflow_client.loadtest.results import results_of
from edgeflow_client.loadtest.robots.frames import frames_for
from edgeflow_client.loadtest.robots.plan import ClosedLoopPlan, LoadPlan
from edgeflow_client.types import CameraSpec, ImageFormat

SHARE, LATER_MS = 0.95, 3.0
SLOW_MS, WARM_UP_S = 50.0, 3.0
CAMERA = CameraSpec("camera", 224, 224, ImageFormat.JPEG)
ONE, TRUE, SLOW = "one robot", "two that declare their rate", "two that declare 50 ms"
FIGURES = ("fps", "age_p50_ms", "age_p99_ms", "rejected", "gaps")


def main() -> None:
    """Measure and print; exit code 1 when a target is missed."""
    arguments = _arguments()
    arms = {ONE: (1, arguments.true_ms), TRUE: (2, arguments.true_ms), SLOW: (2, SLOW_MS)}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    with serving({"chat": {"enabled": False}}) as service:
        for number in range(arguments.rounds):
            for name in (ONE, SLOW, TRUE) if number % 2 else (ONE, TRUE, SLOW):
                rounds[name].append(_run(service.address, *arms[name], arguments))
    found = {name: {key: median(run[key] for run in runs) for key in FIGURES} for name, runs in rounds.items()}
    pairs = list(zip(rounds[SLOW], rounds[TRUE], strict=True))
    shares = [slow["fps"] / true["fps"] for slow, true in pairs]
    share, later_ms = median(shares), median(slow["age_p50_ms"] - true["age_p50_ms"] for slow, true in pairs)
    met = {"share": share >= SHARE, "later": later_ms <= LATER_MS}
    for name, each in found.items():
        print(f"{name}: {each['fps']:.1f} actions/s, age p50 {each['age_p50_ms']:.1f}, p99 {each['age_p99_ms']:.1f} ms")
    spread = f"{min(shares):.3f} to {max(shares):.3f}"
    print(f"{share:.3f} ({spread}) of the actions (target {SHARE}), p50 {later_ms:+.1f} ms (target {LATER_MS:+g})")
    print(", ".join(f"{name}: {'met' if each else 'MISSED'}" for name, each in met.items()))
    report = {**machine_facts(), "true_ms": arguments.true_ms, "slow_ms": SLOW_MS}
    report |= {"seconds": arguments.seconds, "rounds": rounds, "medians": found}
    keep(arguments.json, report | {"share": share, "shares": shares, "later_ms": later_ms, "met": met})
    raise SystemExit(0 if all(met.values()) else 1)


def _run(address: str, robots: int, declared_ms: float, arguments: argparse.Namespace) -> dict[str, Any]:
    session = SessionSettings(cameras=(CAMERA,), control_period_s=declared_ms / 1000)
    plan = LoadPlan(
        address=address,
        session=session,
        pattern=ClosedLoopPlan(),
        robots=robots,
        warm_up_s=WARM_UP_S,
        duration_s=arguments.seconds,
    )
    results = results_of(run_plan(plan, frames_for((CAMERA,), None, plan.distinct, plan.seed), None), {})
    if any(results.refusals):
        raise SystemExit(f"a robot that declares {declared_ms:g} ms was rejected: raise --true-ms")
    total = results.total
    return {
        "fps": total.fps,
        "age_p50_ms": total.age_ms.p50,
        "age_p99_ms": total.age_ms.p99,
        "rejected": sum(total.frames.rejected.values()),
        "gaps": total.gaps,
    }


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument(
        "--true-ms", type=float, default=25.0, help="the period that robots declare if they tell the truth"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="measured time of each run")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
