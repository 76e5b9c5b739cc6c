"""A robot at the far end of an emulated link, in its own process; prints its figures as JSON.

    python -m benchmarks.links.robot ADDRESS --send jpeg --seconds 20
    python -m benchmarks.links.robot ADDRESS --send jpeg --episodes 10

The first pushes synthetic pictures of a camera and follows the actions. The second is the simulated arm of the
demonstration, in real time.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from edgeflow.lab.demo.robot_run import STATE, RunPlan, run_robot
from edgeflow.lab.demo.world.scene import POLICY_CAMERA
from edgeflow_client.flight import Statistics
from edgeflow_client.loadtest.robots.frames import frames_for
from edgeflow_client.rate import RateKeeper
from edgeflow_client.robot import RobotClient
from edgeflow_client.types import CameraSpec, Command, ImageFormat

FRAME_HZ, TICKS = 20.0, 5  # ticks of the robot's control loop per frame
SIZE = (320, 240)
DISTINCT = 16
WARM_UP_S = 2.0


def follow(address: str, send: ImageFormat, seconds: float) -> dict[str, Any]:
    """Push frames and follow the actions.

    The age of an action counts when the robot's control loop first executes it.
    """
    camera = CameraSpec(POLICY_CAMERA, *SIZE, ImageFormat.RGB8, send=send)
    pictures = [images[0] for images in frames_for([camera], None, DISTINCT, seed=0)]
    ages_ms: list[float] = []
    executed = holding = ticks = frame = 0
    with RobotClient(
        address,
        cameras=[camera],
        state=[STATE],
        instruction="grasp the red handle",
        control_period_s=1 / FRAME_HZ,
        open_timeout_s=30,
    ) as client:
        keeper = RateKeeper(1 / (FRAME_HZ * TICKS))
        began_s = time.monotonic()
        before: Statistics | None = None
        while (passed_s := time.monotonic() - began_s) < WARM_UP_S + seconds:
            if before is None and passed_s >= WARM_UP_S:
                before = client.statistics()
            if frame % TICKS == 0:
                client.push(pictures[frame // TICKS % DISTINCT], state={STATE.name: [0.0] * STATE.size})
            frame += 1
            directive = client.latest()
            if directive.needs_reset:
                client.reset()
            if before is not None:
                ticks += 1
                holding += directive.command is not Command.ACT
                if directive.action is not None and directive.action.seq > executed:
                    ages_ms.append((time.monotonic_ns() - directive.action.stamp_ns) / 1e6)
            if directive.action is not None:
                executed = max(executed, directive.action.seq)
            keeper.wait()
        after = client.statistics()
    return {"held_share": holding / max(ticks, 1), **_ages(ages_ms, seconds), **_counts(before or after, after)}


def episodes(address: str, send: ImageFormat, count: int, speed: float) -> dict[str, Any]:
    """Run the simulated arm. speed: of the objects, m/s."""
    plan = RunPlan(episodes=count, frame_hz=FRAME_HZ, object_speed=speed, send=send)
    run = run_robot(address, plan, lambda _: None)
    seconds = run.summary.seconds
    counts = {"successes": run.successes, "episodes": len(run.outcomes), "reconnects": run.statistics.reconnects}
    return {**counts, **_ages([float(age) for age in run.ages_ms], seconds), "holds": run.statistics.holds}


def _ages(ages_ms: list[float], seconds: float) -> dict[str, float | None]:
    p50, p99 = np.percentile(ages_ms, (50, 99)) if ages_ms else (None, None)
    return {"actions_per_s": len(ages_ms) / seconds, "age_p50_ms": p50, "age_p99_ms": p99}


def _counts(before: Statistics, after: Statistics) -> dict[str, int]:
    names = ("offered", "superseded", "dropped", "too_old", "holds", "reconnects")
    return {name: getattr(after, name) - getattr(before, name) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--send", type=ImageFormat, required=True)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--episodes", type=int)
    parser.add_argument("--speed", type=float, default=0.0)
    arguments = parser.parse_args()
    if arguments.episodes is not None:
        figures = episodes(arguments.address, arguments.send, arguments.episodes, arguments.speed)
    else:
        figures = follow(arguments.address, arguments.send, arguments.seconds)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
