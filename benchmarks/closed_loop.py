"""Success, rate and age of the embedded policy in closed loop: both modes, still and moving objects, two devices.

    .venv/bin/python -m benchmarks.closed_loop --json benchmarks/results/closed-loop-cpu.json

The conditions of `edgeflow eval-demo` that the README shows, with the facts of the machine beside them. Episodes run in
simulated time with the real scheduler and engine, so only "this machine" depends on how fast this machine is.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from benchmarks.command import keep, options
from benchmarks.machine import machine_facts
from edgeflow.console import reporting
from edgeflow.demo.evaluation import ConditionResult, EvaluationPlan, evaluate
from edgeflow.types import Mode

MODES = (Mode.SERIAL, Mode.PIPELINED)
PROFILES = ("none", "rtx5090")
PERIOD_S = 0.05


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    still = _plan(arguments.episodes, 0.0, arguments.profile)
    moving = _plan(arguments.moving_episodes, arguments.speed / 100, arguments.profile)
    conditions: list[dict[str, Any]] = []
    with reporting(Console(stderr=True)) as report:
        for plan in (still, moving):
            for result in evaluate(plan, report):
                conditions.append(result.as_json())
                print(_line(result), flush=True)
    keep(arguments.json, {**machine_facts(), "model": "demo", "frame_hz": 1 / PERIOD_S, "conditions": conditions})


def _plan(episodes: int, speed_m_s: float, profiles: list[str] | None) -> EvaluationPlan:
    return EvaluationPlan(
        episodes=episodes,
        modes=MODES,
        anchored=[True],
        speeds=[speed_m_s],
        profiles=profiles or PROFILES,
        period_s=PERIOD_S,
    )


def _line(result: ConditionResult) -> str:
    condition, success = result.condition, result.success
    low, high = success.interval
    share = f"{success.successes} of {success.episodes} ({100 * low:.1f} to {100 * high:.1f} %)"
    head = f"{condition.profile.name}, {condition.mode.value}, objects at {condition.speed * 100:g} cm/s"
    return f"{head}: {share}; {result.fps:.1f} actions/s, age p50 {result.age_p50_ms:.0f} ms"


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, default=200, help="per condition with still objects")
    parser.add_argument("--moving-episodes", type=int, default=40, help="per condition with moving objects")
    parser.add_argument("--speed", type=float, default=5.0, help="of the moving objects, cm/s")
    parser.add_argument("--profile", action="append", help="none (this machine), orin, rtx5090 or FILE; repeatable")
    return parser.parse_args()


if __name__ == "__main__":
    main()
