"""The README's picture: one episode under three modes, moment by moment, with what the result file says of each mode.

    .venv/bin/python -m benchmarks.closed_loop.strip --out docs/images/modes-strip.png

Each row is the same episode, the first of the evaluation: the same objects, start and instruction, with the scheduler
and engine of the service in simulated time. Rate, age and success come from the result file, over all of its episodes.
Everything that the picture states is also written beside it, as JSON.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from PIL import Image as Pictures

from benchmarks.closed_loop.grid import EXACT, MOVING, PERIOD_S, PIPELINED, RTX5090, SERIAL, STAGES, condition
from benchmarks.command import keep
from edgeflow.contract import Pace
from edgeflow.engine.control.profile import load_profile
from edgeflow.lab.demo.evaluation import load_policy
from edgeflow.lab.demo.lockstep import FRESH_SEEDS
from edgeflow.lab.demo.simulated.service import VirtualService
from edgeflow.lab.demo.world.scene import Image, Moment, Spectator
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import REACH, EpisodeOutcome
from edgeflow.model_paths import EMBEDDED_MODEL
from edgeflow_client.loadtest.palette import GREEN, INK, VERMILION, mode_colour
from edgeflow_client.pose import Vector

RESULTS = Path(__file__).parents[1] / "results" / "closed-loop-cpu-2026-11-22.json"
MOMENTS_S = (0.9, 1.2, 1.6, 2.0, 2.4)
"""Moments of the pictures; the end of the episode follows."""
PACES = (SERIAL, PIPELINED, EXACT)
_PIXELS = (1600, 780)
_RENDERED = (448, 416)  # pixels of one picture, twice its size, so that its edges are smooth
_DOTS_PER_INCH = 100


@dataclass(frozen=True, slots=True, eq=False)
class Shot:
    """A moment of an episode."""

    seconds: float
    moment: Moment
    tool: Vector
    """Position in which the gripper closes, `[3]`, metres."""
    grasp: Vector
    """Position in which it should close."""

    @property
    def apart_mm(self) -> float:
        return 1000 * math.dist(self.tool, self.grasp)


class FilmedSim(RobotSim):
    """A simulated robot that keeps a shot after each step."""

    def reset(self, seed: int) -> None:
        self.shots: list[Shot] = []
        super().reset(seed)

    def step(self, seconds: float) -> None:
        super().step(seconds)
        grasp = self.grasps()[self.task.target].position
        self.shots.append(Shot(self.time, self.moment(), self.pose().position, grasp))


@dataclass(frozen=True, slots=True, eq=False)
class FilmedMode:
    """A mode's pictures with their shots, and the facts beside them."""

    mode: str
    shots: Sequence[Shot]
    images: Sequence[Image]
    grasped: bool
    facts: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """All that the picture states."""
        shots = [{"seconds": round(shot.seconds, 2), "apart_mm": round(shot.apart_mm, 1)} for shot in self.shots]
        return {**self.facts, "grasped": self.grasped, "shots": shots}


def main() -> None:
    """Draw the strip, and write its figures beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the picture, PNG")
    parser.add_argument("--results", type=Path, default=RESULTS, help="result file of benchmarks.closed_loop")
    arguments = parser.parse_args()
    rows = film(json.loads(arguments.results.read_text())["conditions"])
    draw(arguments.out, rows)
    stated = {"results": arguments.results.name, "seed": FRESH_SEEDS, "modes": [row.to_json() for row in rows]}
    keep(arguments.out.with_suffix(".json"), stated)


def film(results: Sequence[Mapping[str, Any]]) -> list[FilmedMode]:
    """Run the episode under each mode. results: rows of the result file."""
    built, profile = load_policy(EMBEDDED_MODEL), load_profile(RTX5090)
    assert profile is not None
    service = VirtualService(built.engine, built.limits, profile.times(STAGES))
    sim = FilmedSim(FRESH_SEEDS, MOVING)
    rows = []
    for pace in PACES:
        sim.reset(FRESH_SEEDS)
        outcome = service.run_episode(sim, pace, period_s=PERIOD_S, anchored=True).outcome
        shots = [*(min(sim.shots, key=lambda shot: abs(shot.seconds - wanted)) for wanted in MOMENTS_S), sim.shots[-1]]
        facts = _facts(results, pace)
        images = [sim.draw(shot.moment, _spectator(shot, facts["mode"])) for shot in shots]
        rows.append(FilmedMode(facts["mode"], shots, images, outcome is EpisodeOutcome.SUCCESS, facts))
    sim.close()
    return rows


def _facts(results: Sequence[Mapping[str, Any]], pace: Pace) -> dict[str, Any]:
    """The figures of a mode over all episodes of the result file."""
    wanted = condition(pace, MOVING, RTX5090)
    row = next(
        row
        for row in results
        if (row["policy"], row["mode"], row["profile"], row["speed_cm_s"], row["anchored"])
        == (EMBEDDED_MODEL, wanted.mode, RTX5090, 100 * MOVING, True)
    )
    return {name: row[name] for name in ("mode", "fps", "age_mean_ms", "successes", "episodes")}


def _spectator(shot: Shot, mode: str) -> Spectator:
    """From the front, the object always in the middle; the ball is where the gripper can close on it."""
    red, green, blue, _ = to_rgba(mode_colour(mode))
    return Spectator(
        target=shot.grasp + np.array([0.0, 0.0, 0.035]),
        distance=0.29,
        azimuth=200.0,
        elevation=-25.0,
        size=_RENDERED,
        ball=(shot.tool, REACH, (red, green, blue, 0.5)),
    )


def draw(path: Path, rows: Sequence[FilmedMode]) -> None:
    """Draw a row of pictures for each mode, its figures at the left."""
    width, height = (pixels / _DOTS_PER_INCH for pixels in _PIXELS)
    figure = Figure(figsize=(width, height), dpi=_DOTS_PER_INCH)
    FigureCanvasAgg(figure)
    columns = len(rows[0].shots) + 1
    grid = figure.add_gridspec(
        len(rows), columns, left=0.005, right=0.995, top=0.895, bottom=0.07, wspace=0.02, hspace=0.03
    )
    for index, row in enumerate(rows):
        _caption(figure.add_subplot(grid[index, 0]), row)
        last = len(row.shots) - 1
        for place, (shot, image) in enumerate(zip(row.shots, row.images, strict=True)):
            _picture(figure.add_subplot(grid[index, place + 1]), row, shot, image, ended=place == last)
    figure.text(
        0.5, 0.945, f"Object moving at {100 * MOVING:g} cm/s; pass times of an RTX 5090, emulated", ha="center",
        va="center", fontsize=24,
    )  # fmt: skip
    figure.text(
        0.5, 0.03, f"Same start and seed. The gripper grasps if it closes with the middle of the white pin in the ball"
        f" ({1000 * REACH:g} mm). Figures at the left: {rows[0].facts['episodes']} episodes.",
        ha="center", va="center", fontsize=15, color=INK,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]
    Pictures.fromarray(pixels).quantize(256, dither=Pictures.Dither.NONE).save(path, optimize=True)


def _caption(axes: Axes, row: FilmedMode) -> None:
    facts = row.facts
    axes.set_axis_off()
    lines = (
        (0.80, row.mode, 24, mode_colour(row.mode)),
        (0.57, f"{facts['fps']:.1f} actions/s", 19, INK),
        (0.37, f"latency {facts['age_mean_ms']:.0f} ms", 19, INK),
        (0.17, f"success {facts['successes'] / facts['episodes']:.0%}", 19, INK),
    )
    for height, text, size, colour in lines:
        axes.text(0.02, height, text, fontsize=size, color=colour, transform=axes.transAxes, va="center")


def _picture(axes: Axes, row: FilmedMode, shot: Shot, image: Image, *, ended: bool) -> None:
    axes.imshow(image, aspect="auto", interpolation="antialiased")
    axes.set_xticks([])
    axes.set_yticks([])
    for edge in axes.spines.values():
        edge.set_color(mode_colour(row.mode))
        edge.set_linewidth(2)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 3}
    axes.text(0.03, 0.95, f"{shot.seconds:.1f} s", fontsize=18, va="top", transform=axes.transAxes, bbox=box)
    label, colour = f"{shot.apart_mm:.0f} mm off", INK
    if ended:
        label, colour = ("grasped", GREEN) if row.grasped else ("not grasped", VERMILION)
    axes.text(0.97, 0.05, label, fontsize=18, color=colour, ha="right", va="bottom", transform=axes.transAxes, bbox=box)


if __name__ == "__main__":
    main()
