"""`edgeflow eval-demo`: success, rate and age of the embedded policy over a grid of conditions.

Every episode runs the real worker in virtual time (demo/virtual.py). A condition is a mode, anchoring, object speed
and device profile; differences in success are the effect of the scheduler's delays on the closed loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from edgeflow.config import ServiceConfig
from edgeflow.demo.evaluate import SuccessRate, success_rate
from edgeflow.demo.measure import FRESH_SEEDS
from edgeflow.demo.sim import RobotSim
from edgeflow.demo.virtual import EpisodeRun, VirtualService
from edgeflow.engine.control.build import build_engine
from edgeflow.engine.control.profile import DeviceProfile, load_profile
from edgeflow.engine.control.warmup import warm_up
from edgeflow.engine.process.calibrate import calibrate
from edgeflow.types import Mode, PassTimes

SEED_STRIDE = 100_000  # episodes of one seed never meet those of the next


@dataclass(frozen=True, slots=True)
class Condition:
    """One row of the table. speed: of the objects, m/s. profile: device whose pass times are used."""

    mode: Mode
    anchored: bool
    speed: float
    profile: DeviceProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionResult:
    """Success over all episodes; actions per second and ages in milliseconds, in simulated time."""

    condition: Condition
    success: SuccessRate
    fps: float
    age_p50_ms: float
    age_p99_ms: float
    by_seed: tuple[SuccessRate, ...]

    def as_json(self) -> dict[str, Any]:
        low, high = self.success.interval
        return {
            "mode": self.condition.mode.value,
            "anchored": self.condition.anchored,
            "speed_cm_s": self.condition.speed * 100,
            "profile": self.condition.profile.name,
            "episodes": self.success.episodes,
            "successes": self.success.successes,
            "success": self.success.share,
            "interval_95": [low, high],
            "success_by_seed": [rate.share for rate in self.by_seed],
            "fps": self.fps,
            "age_p50_ms": self.age_p50_ms,
            "age_p99_ms": self.age_p99_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """The grid to run. period_s: between camera frames. depth: for Mode.DEPTH only."""

    episodes: int
    modes: Sequence[Mode]
    anchored: Sequence[bool]
    speeds: Sequence[float]
    profiles: Sequence[str]
    seeds: Sequence[int] = field(default=(0,))
    period_s: float = 0.05
    model: str = "demo"
    depth: int = 0


def evaluate(plan: EvaluationPlan, progress: Callable[[str, int, int], None]) -> Iterator[ConditionResult]:
    """Run the grid, one condition at a time."""
    built = build_engine(ServiceConfig(model=plan.model, max_sessions=1))
    warm_up(built.engine, built.limits.shift, lambda *_: None)
    times = calibrate(built.engine)
    for condition in _grid(plan, times):
        service = VirtualService(built.engine, built.limits, condition.profile)
        runs = [list(_episodes(service, condition, plan, seed, progress)) for seed in plan.seeds]
        yield _result(condition, runs)


def _grid(plan: EvaluationPlan, times: PassTimes) -> Iterator[Condition]:
    measured = DeviceProfile("this machine", times.prefill_ns, times.decode_ns, times.packed_ns)
    profiles = [load_profile(name) or measured for name in plan.profiles]
    for profile, speed, mode, anchored in itertools.product(profiles, plan.speeds, plan.modes, plan.anchored):
        yield Condition(mode, anchored, speed, profile)


def _episodes(
    service: VirtualService,
    condition: Condition,
    plan: EvaluationPlan,
    seed: int,
    progress: Callable[[str, int, int], None],
) -> Iterator[EpisodeRun]:
    first = FRESH_SEEDS + SEED_STRIDE * seed
    name = f"{condition.profile.name}, {condition.mode.value}, {condition.speed * 100:g} cm/s, seed {seed}"
    sim = RobotSim(first, condition.speed)
    for index in range(plan.episodes):
        progress(name, index, plan.episodes)
        sim.reset(first + index)
        yield service.run_episode(
            sim, condition.mode, period_s=plan.period_s, anchored=condition.anchored, depth=plan.depth
        )
    sim.close()


def _result(condition: Condition, runs: list[list[EpisodeRun]]) -> ConditionResult:
    every = [run for of_seed in runs for run in of_seed]
    ages = [age_ns / 1e6 for run in every for age_ns in run.ages_ns] or [float("nan")]
    return ConditionResult(
        condition=condition,
        success=success_rate([run.outcome for run in every]),
        fps=sum(run.actions for run in every) / sum(run.seconds for run in every),
        age_p50_ms=median(ages),
        age_p99_ms=float(np.percentile(ages, 99)),
        by_seed=tuple(success_rate([run.outcome for run in of_seed]) for of_seed in runs),
    )
