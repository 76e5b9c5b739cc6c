"""Episodes of an environment, and their results: a table, JSON and a strip of pictures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from rich.markup import escape

from edgeflow.lab.demo.recording import Estimate, wilson
from edgeflow.lab.outputs import check_writable, writing
from edgeflow.lab.progress import Report
from edgeflow.lab.sim.environment import GymRobot, Picture
from edgeflow.lab.sim.pilots import Pilot
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.measure import Distribution
from edgeflow_client.loadtest.terminal import FoldingTable

SHOWN = 6  # pictures of a strip
_HEIGHT = 240  # pixels of a picture of the strip
_CAPTION = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GymEpisode:
    """Results of one episode."""

    seed: int
    success: bool | None
    """None = the environment has no sign of success."""
    steps: int
    reward: float
    """The sum over its steps."""
    most_reward: float
    """The largest of a step."""
    holds: int
    """Steps in which the robot kept still for want of an action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GymRun:
    """Results of a run."""

    environment: str
    policy: str
    time: str
    """lockstep or real time."""
    rate_hz: float
    """Control steps per simulated second."""
    episodes: tuple[GymEpisode, ...]
    seconds: float
    """Time on the wall clock for all episodes."""
    latency_ms: Distribution
    """From an observation to its answer; its count is the number of answers."""
    missed: int
    """Control steps that came late."""

    @property
    def success(self) -> Estimate | None:
        """The share of episodes with a success; None = the environment has no sign of it."""
        known = [each.success for each in self.episodes if each.success is not None]
        return wilson(sum(known), len(known)) if known else None

    @property
    def answers_per_s(self) -> float:
        return self.latency_ms.count / self.seconds

    def to_json(self) -> dict[str, Any]:
        success = asdict(self.success) if self.success is not None else None
        return {**asdict(self), "success": success, "answers_per_s": self.answers_per_s}

    def table(self) -> FoldingTable:
        """One row per figure, with what it counts."""
        episodes, success, latency = self.episodes, self.success, self.latency_ms
        steps = [each.steps for each in episodes]
        rewards = [each.reward for each in episodes]
        most = max(each.most_reward for each in episodes)
        title = escape(f"{self.environment}, {self.policy}, {self.time}")
        table = FoldingTable("", "", title=title, show_header=False)
        if success is not None:
            solved = sum(bool(each.success) for each in episodes)
            interval = f"95 % interval {success.low:.0%} to {success.high:.0%}"
            table.add_row("success", f"{solved} of {len(episodes)}, {interval}")
        table.add_row("reward", f"{np.mean(rewards):.4g} per episode; best step {most:.4g}")
        table.add_row("length", f"{np.mean(steps):.0f} steps, {np.mean(steps) / self.rate_hz:.1f} s simulated")
        if latency.count:
            table.add_row("latency", f"{latency.p50:.1f} ms p50, {latency.p99:.1f} ms p99")
            table.add_row("answers", f"{latency.count}, {self.answers_per_s:.1f} per s")
        table.add_row("HOLD", f"{sum(each.holds for each in episodes)} of {sum(steps)} steps")
        if self.missed:
            table.add_row("late steps", f"{self.missed}: the environment is slower than its control rate here")
        return table


@dataclass(slots=True)
class FilmStrip:
    """Small pictures of one episode, and the PNG file that they become; ConfigError if it cannot be written."""

    path: Path
    _pictures: list[tuple[float, Image.Image]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path.suffix.lower() != ".png":
            raise ConfigError(f"strip: {self.path} is not the name of a PNG file")
        check_writable(self.path.absolute().parent)

    def add(self, seconds: float, picture: Picture) -> None:
        image = Image.fromarray(picture)
        self._pictures.append((seconds, image.resize((round(image.width * _HEIGHT / image.height), _HEIGHT))))

    def write(self, end: str) -> None:
        """Write pictures at equal intervals side by side, with their times. end: caption of the last one."""
        places = np.linspace(0, len(self._pictures) - 1, min(SHOWN, len(self._pictures))).round().astype(int)
        chosen = [self._pictures[place] for place in places]
        width = chosen[0][1].width
        strip = Image.new("RGB", (len(chosen) * (width + 4) - 4, _HEIGHT + _CAPTION), "white")
        draw = ImageDraw.Draw(strip)
        for index, (seconds, picture) in enumerate(chosen):
            strip.paste(picture, (index * (width + 4), _CAPTION))
            caption = f"{seconds:.1f} s" + (f", {end}" if index == len(chosen) - 1 else "")
            draw.text((index * (width + 4) + 4, 3), caption, fill="black", font_size=13)
        with writing(self.path):
            strip.save(self.path)


def run_episodes(
    robot: GymRobot, pilot: Pilot, seeds: Sequence[int], report: Report, strip: FilmStrip | None = None
) -> tuple[list[GymEpisode], float]:
    """Run an episode per seed; their results, and the seconds that they took. strip: gets the pictures of the first."""
    episodes: list[GymEpisode] = []
    begun_s = time.monotonic()
    for seed in seeds:
        report("episodes", len(episodes), len(seeds))
        episodes.append(_episode(robot, pilot, seed, strip if not episodes else None))
    return episodes, time.monotonic() - begun_s


def _episode(robot: GymRobot, pilot: Pilot, seed: int, strip: FilmStrip | None) -> GymEpisode:
    frame = robot.reset(seed)
    pilot.begin()
    rewards: list[float] = []
    holds = 0
    while True:
        if strip is not None:
            strip.add(frame.seconds, robot.picture(frame))
        action = pilot.act(frame)
        holds += action is None
        step = robot.step(action)
        rewards.append(step.reward)
        frame = step.frame
        if step.over:
            break
    if strip is not None:
        strip.add(frame.seconds, robot.picture(frame))
    return GymEpisode(
        seed=seed,
        success=step.success,
        steps=frame.step,
        reward=sum(rewards),
        most_reward=max(rewards),
        holds=holds,
    )
