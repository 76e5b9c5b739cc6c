"""The rate and age that the service forecasts for each mode, against what the load test then measures.

    .venv/bin/python -m benchmarks.forecast --json FILE

One robot sends frames at a fixed rate to `edgeflow serve --profile rtx5090`, in each mode in turn. The rate is above
what any mode can follow, so the forecast is that of a saturated service. Deviations are (measured / forecast - 1) in
per cent.

The frames are those of recorded episodes in their order, since in mode speculative the passes of a frame depend on the
one before it: from a folder (--frames), or else of the scripted expert. A session in mode speculative goes first, so
that the service has measured in how many passes frames are verified.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.command import keep, machine_facts, options
from benchmarks.serving import serving
from edgeflow.lab.demo.lockstep import run_episode
from edgeflow.lab.demo.world.expert import Expert
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow_client.connection.wire import SessionSettings
from edgeflow_client.loadtest.command import run_plan
from edgeflow_client.loadtest.results import results_of
from edgeflow_client.loadtest.robots.frames import frames_for
from edgeflow_client.loadtest.robots.plan import Fixed, LoadPlan
from edgeflow_client.loadtest.summary import Prediction
from edgeflow_client.types import CameraSpec, ImageFormat, Mode

BAR = 15.0  # per cent
MODES = (
    (Mode.SERIAL, 0),
    (Mode.DEPTH, 2),
    (Mode.DEPTH, 3),
    (Mode.DEPTH, 4),
    (Mode.PIPELINED, 0),
    (Mode.SPECULATIVE, 0),
    (Mode.AUTO, 0),
)
INSTRUCTION = "grasp the red handle"
CAMERA = CameraSpec("camera", 96, 96, ImageFormat.RGB8)


def main() -> None:
    """Measure and print; exit code 1 when a deviation exceeds the target."""
    arguments = _arguments()
    rows: list[dict[str, Any]] = []
    frames = _frames(arguments)
    with serving({"profile": arguments.profile, "chat": {"enabled": False}}) as service:
        measure(service.address, Mode.SPECULATIVE, 0, frames, arguments)
        for mode, depth in MODES:
            rows.append(_row(mode, measure(service.address, mode, depth, frames, arguments)))
            print(_line(rows[-1]), flush=True)
    worst = {name: max(abs(row[f"{name}_deviation"]) for row in rows) for name in ("fps", "age")}
    met = max(worst.values()) <= BAR
    text = f"largest deviation: rate {worst['fps']:.1f} %, age {worst['age']:.1f} %"
    print(f"{text}; target {BAR:g} %: {'met' if met else 'MISSED'}")
    head = {**machine_facts(), "profile": arguments.profile, "rate_hz": arguments.rate, "seconds": arguments.seconds}
    head |= {"frames": len(frames), "object_speed": arguments.object_speed if arguments.frames is None else None}
    keep(arguments.json, {**head, "bar_percent": BAR, "largest_deviation_percent": worst, "modes": rows, "met": met})
    raise SystemExit(0 if met else 1)


def measure(
    address: str, mode: Mode, depth: int, frames: list[tuple[bytes, ...]], arguments: argparse.Namespace
) -> Prediction:
    """The forecast that one robot's session was given, with what it then got."""
    session = SessionSettings(
        cameras=(CAMERA,),
        control_period_s=1 / arguments.rate,
        mode=mode,
        depth=depth,
        max_action_age_s=arguments.max_age if mode is Mode.AUTO else None,
    )
    plan = LoadPlan(
        address=address,
        session=session,
        instructions=(INSTRUCTION,),
        pattern=Fixed(arguments.rate),
        warm_up_s=arguments.warm_up,
        duration_s=arguments.seconds,
    )
    (prediction,) = results_of(run_plan(plan, frames, None), {}).predictions
    if prediction is None:
        raise SystemExit(f"{mode.value}: the service gave no forecast or no action")
    return prediction


def record(folder: Path, episodes: int, object_speed: float, period_s: float) -> None:
    """Write what the expert's camera sees in so many episodes with the instruction, as pictures in their order."""
    seed, count = 0, 0
    sim = RobotSim(seed, object_speed)
    expert = Expert(sim)

    def act(image: Any, instruction: str) -> Any:
        nonlocal count
        Image.fromarray(image).save(folder / f"{count:06d}.png")
        count += 1
        return expert(image, instruction)

    while episodes:
        if sim.instruction == INSTRUCTION:
            run_episode(sim, act, period_s)
            episodes -= 1
        seed += 1
        sim.reset(seed)
    sim.close()


def _frames(arguments: argparse.Namespace) -> list[tuple[bytes, ...]]:
    if arguments.frames is not None:
        return frames_for((CAMERA,), arguments.frames, 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder), arguments.episodes, arguments.object_speed, 1 / arguments.rate)
        return frames_for((CAMERA,), Path(folder), 0, 0)


def _row(requested: Mode, found: Prediction) -> dict[str, Any]:
    deviations = {"fps_deviation": found.fps_deviation, "age_deviation": found.age_deviation}
    return {"requested": requested.value, **asdict(found), **deviations}


def _line(row: dict[str, Any]) -> str:
    rate = f"{row['fps']:.1f} actions/s forecast, {row['measured_fps']:.1f} measured ({row['fps_deviation']:+.1f} %)"
    age = f"age {row['age_ms']:.0f} ms forecast, {row['measured_age_ms']:.0f} measured ({row['age_deviation']:+.1f} %)"
    return f"{row['requested']:>11} (depth {row['depth']}): {rate}; {age}"


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--profile", default="rtx5090", help="device profile that sets the pass times, or none")
    parser.add_argument("--frames", type=Path, help="folder of pictures of episodes in their order")
    parser.add_argument("--episodes", type=int, default=12, help="of the expert, recorded where there is no folder")
    parser.add_argument("--object-speed", type=float, default=0.05, help="of the handles in these, metres per second")
    parser.add_argument("--rate", type=float, default=20.0, help="frames per second")
    parser.add_argument("--max-age", type=float, default=0.3, help="seconds; the limit that mode auto has to keep")
    parser.add_argument("--seconds", type=float, default=30.0, help="measured per mode")
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds before each measurement")
    return parser.parse_args()


if __name__ == "__main__":
    main()
