"""The time that the service adds to a frame of three cameras and state, beside a frame of one camera, in turn.

    .venv/bin/python -m benchmarks.wide_frames --images FOLDER --json FILE

Two services with ACT policies of random weights run side by side, one with a camera and one with three, 640x480 JPEG
each; robots of both send frames in turn, one at a time. Overhead and its parts are as in `benchmarks.service_overhead`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.command import keep, machine_facts, options
from benchmarks.service_overhead import parts_ms
from benchmarks.serving import serving
from edgeflow_client.connection.wire import SessionSettings
from edgeflow_client.loadtest.command import run_plan
from edgeflow_client.loadtest.robots.frames import frames_for
from edgeflow_client.loadtest.robots.plan import ClosedLoopPlan, LoadPlan
from edgeflow_client.loadtest.summary import received_of
from edgeflow_client.types import CameraSpec, ImageFormat, Mode, StateSpec
from tests.policies.act.checkpoint import write_checkpoint
from tests.policies.act.twin import STATE, TwinSize

WIDTH, HEIGHT = 640, 480
NUMBERS = 6  # of a state, and of an action
NAMES = ("top", "left", "right")
BAR = 3.0  # overhead p50 of three cameras, as a multiple of that of one
PARTS = ("overhead", "transport", "decode", "queue", "hand-over", "inference")


@dataclass(frozen=True, slots=True)
class ServiceAndPlan:
    """A service and the plan of its robot."""

    plan: LoadPlan
    images: Sequence[tuple[bytes, ...]]
    """Images of the frames that it sends in turn."""

    def round(self) -> dict[str, float]:
        """The median of each part over the frames of a round, in milliseconds."""
        run = run_plan(self.plan, self.images, None)
        parts = parts_ms(received_of(run, run.ledgers[0]))
        return {name: float(np.median(parts[name])) for name in PARTS}


def main() -> None:
    """Measure and print; exit code 1 when the target is missed."""
    arguments = _arguments()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        one, three = (_side(stack, folder, NAMES[:count], arguments) for count in (1, len(NAMES)))
        rounds = [(one.round(), three.round()) for _ in range(arguments.rounds + 1)][1:]
    figures = {name: _compared(rounds, name) for name in PARTS}
    for name, (narrow, wide, ratio) in figures.items():
        print(f"{name:>10}: one camera {narrow:.2f} ms, three {wide:.2f} ms, {ratio:.2f} times")
    ratio = figures["overhead"][2]
    met = ratio <= BAR
    print(f"overhead p50: target {BAR:g} times: {'met' if met else 'MISSED'}")
    facts = {**machine_facts(), "rounds": len(rounds), "frames_per_round": arguments.frames}
    facts["pictures"] = "recorded" if arguments.images else "synthetic"
    named = {name: dict(zip(("one_ms", "three_ms", "ratio"), values, strict=True)) for name, values in figures.items()}
    keep(arguments.json, {**facts, "medians_of_rounds": named, "bar": BAR, "met": met})
    raise SystemExit(0 if met else 1)


def _side(stack: ExitStack, folder: Path, names: Sequence[str], arguments: argparse.Namespace) -> ServiceAndPlan:
    size = TwinSize(
        cameras={f"observation.images.{name}": (HEIGHT, WIDTH) for name in names},
        state=NUMBERS,
        action=NUMBERS,
        stem=8,
        width=64,
        mlp=128,
        encoder_layers=1,
        latent=8,
        chunk=20,
    )
    model = write_checkpoint(folder / f"act{len(names)}", size)
    config = {"model": str(model), "policy": {"control_rate_hz": 30.0}, "chat": {"enabled": False}, "standby": True}
    service = stack.enter_context(serving(config))
    session = SessionSettings(
        cameras=tuple(CameraSpec(name, WIDTH, HEIGHT, ImageFormat.JPEG) for name in names),
        state=(StateSpec(name=STATE, size=NUMBERS),),
        control_period_s=0.1,
        mode=Mode.SERIAL,
    )
    plan = LoadPlan(
        address=service.address,
        session=session,
        pattern=ClosedLoopPlan(),
        warm_up_s=0.5,
        count=arguments.frames,
        ramp_up_s=0.0,
    )
    return ServiceAndPlan(plan, frames_for(session.cameras, arguments.images, plan.distinct, plan.seed))


def _compared(rounds: Sequence[tuple[dict[str, float], dict[str, float]]], name: str) -> tuple[float, float, float]:
    """One camera, three cameras and their ratio: medians of the rounds."""
    pairs = [(narrow[name], wide[name]) for narrow, wide in rounds]
    narrow, wide = zip(*pairs, strict=True)
    return statistics.median(narrow), statistics.median(wide), statistics.median(_ratios(pairs))


def _ratios(pairs: Sequence[tuple[float, float]]) -> Iterator[float]:
    return (wide / narrow if narrow else 1.0 for narrow, wide in pairs)


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--frames", type=int, default=60, help="per round and service")
    parser.add_argument("--images", type=Path, help="folder of camera images (default: synthetic, with noise)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
