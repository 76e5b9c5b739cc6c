"""`edgeflow eval-demo`: success, rate and latency of the embedded policy over a grid of conditions.

Every episode runs the real worker in virtual time (lab/demo/simulated/service.py). A condition is a pace, anchoring,
object speed and device profile; differences in success are the effect of the scheduler's delays on the closed loop.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from edgeflow.config.sections import PolicyConfig
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import KVName, Pace, PassTimes, Speculation
from edgeflow.engine.control.offline import program_of
from edgeflow.engine.control.profile import load_profile
from edgeflow.engine.control.warmup import warm_up
from edgeflow.lab.demo.lockstep import FRESH_SEEDS, SuccessRate, success_rate
from edgeflow.lab.demo.simulated.episodes import EpisodeRun
from edgeflow.lab.demo.simulated.measures import ExecutionFigures, execution_figures
from edgeflow.lab.demo.simulated.robot import Delay
from edgeflow.lab.demo.simulated.service import VirtualService, facts_of
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.progress import reporting
from edgeflow.scheduler.pace import auto_pace, pace_of
from edgeflow.worker.build import BuiltEngine, build_engine
from edgeflow.worker.calibrate import calibrate
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.drawing import figure_of, save
from edgeflow_client.loadtest.palette import INK, mode_colour
from edgeflow_client.loadtest.results import finite
from edgeflow_client.loadtest.terminal import FoldingTable, table_console
from edgeflow_client.types import Execution, Mode

SEED_STRIDE = 100_000  # the episodes of one seed never overlap with those of the next
THIS_MACHINE = "this machine"  # the profile "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCondition:
    """One row of the table."""

    mode: str
    """Name of the pace."""
    pace: Pace
    anchored: bool
    speed: float
    """Speed of the objects in m/s."""
    profile: str
    """Name of the device whose pass times are used."""
    delay: Delay | None = None
    """Replaces the age that the passes cause."""
    execution: Execution = Execution.AUTO
    """How answers are executed."""
    jump_m: float = 0.0
    """How far the target object jumps once, at a random time."""
    follow_s: float = 0.0
    """Aging.follow_s of the robot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionResult:
    """Figures over all episodes of a condition, in simulated time."""

    condition: TableCondition
    success: SuccessRate
    by_seed: tuple[SuccessRate, ...]
    seconds_per_success: float
    """Time of all episodes, including failed ones, per success; infinite if there are none."""
    fps: float
    """Actions per second."""
    age_mean_ms: float
    age_p50_ms: float
    age_p99_ms: float
    passes: Mapping[int, int]
    """Number of actions by the number of passes they took."""
    overtaken: float
    """Share of the started frames that were overtaken by a newer one."""
    unsettled: float
    """Share of the actions with unverified tokens."""
    executed: ExecutionFigures
    late: float = 0.0
    """Share of the received chunks that came too late to continue as planned."""
    late_played: float = 0.0
    """Share of the received chunks that were late and were executed nevertheless."""

    @property
    def passes_mean(self) -> float:
        count = sum(self.passes.values())
        return sum(passes * times for passes, times in self.passes.items()) / count if count else math.nan

    def as_json(self) -> dict[str, Any]:
        """The figures as JSON values; null if unknown."""
        condition, (low, high) = self.condition, self.success.interval
        figures = {
            "mode": condition.mode,
            "anchored": condition.anchored,
            "speed_cm_s": condition.speed * 100,
            "jump_cm": condition.jump_m * 100,
            "profile": condition.profile,
            "episodes": self.success.episodes,
            "successes": self.success.successes,
            "success": self.success.share,
            "interval_95": [low, high],
            "success_by_seed": [rate.share for rate in self.by_seed],
            "seconds_per_success": self.seconds_per_success,
            "fps": self.fps,
            "age_mean_ms": self.age_mean_ms,
            "age_p50_ms": self.age_p50_ms,
            "age_p99_ms": self.age_p99_ms,
            "passes_mean": self.passes_mean,
            "passes": {str(passes): self.passes[passes] for passes in sorted(self.passes)},
            "overtaken": self.overtaken,
            "unsettled": self.unsettled,
            "execution": condition.execution.value,
            "follow_s": condition.follow_s,
            "late": self.late,
            "late_played": self.late_played,
            **self.executed.as_json(),
        }
        known: dict[str, Any] = finite(figures)
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """The grid to run."""

    episodes: int
    modes: Sequence[Mode]
    anchored: Sequence[bool]
    speeds: Sequence[float]
    profiles: Sequence[str]
    seeds: Sequence[int] = field(default=(0,))
    period_s: float = 0.05
    """Between camera frames."""
    model: str = "demo"
    depth: int = 0
    """Pipeline depth, for Mode.DEPTH."""
    speculation: Speculation = field(default_factory=Speculation)
    """For Mode.SPECULATIVE. Mode.AUTO has no age limit here."""
    executions: Sequence[Execution] = (Execution.AUTO,)
    """How answers are executed."""
    kv: KVName = "model"
    """KV format, as in `policy.kv`."""
    jump_m: float = 0.0
    """As in TableCondition."""


def evaluate(plan: EvaluationPlan, progress: Callable[[str, int, int], None]) -> Iterator[ConditionResult]:
    """Run the grid, one condition at a time."""
    built = load_policy(plan.model, plan.kv)
    stages = built.limits.stages
    if plan.speculation.max_passes > stages:
        raise ConfigError(f"max_passes: must be 1 to {stages}, got {plan.speculation.max_passes}")
    program = program_of(built.engine)
    paces = [
        auto_pace(program) if mode is Mode.AUTO else pace_of(mode, stages, plan.depth, plan.speculation)
        for mode in plan.modes
    ]
    times = dict(_times(name, built) for name in plan.profiles)
    _check_executions(plan, built)
    grid = itertools.product(times, plan.speeds, paces, plan.anchored, plan.executions)
    for profile, speed, pace, anchored, execution in grid:
        condition = TableCondition(
            mode=pace_name(pace, stages),
            pace=pace,
            anchored=anchored,
            speed=speed,
            profile=profile,
            execution=execution,
            jump_m=plan.jump_m,
        )
        service = VirtualService(built.engine, built.limits, times[profile], execution=execution)
        runs = [list(_of_seed(service, condition, plan, seed, progress)) for seed in plan.seeds]
        yield result_of(condition, runs, stages, plan.period_s)


def _check_executions(plan: EvaluationPlan, built: BuiltEngine) -> None:
    """ConfigError for an execution that the policy does not permit."""
    facts = facts_of(built.engine.policy)
    for asked in plan.executions:
        if text := facts.refusal(asked):
            raise ConfigError(f"execution: {text}")


def pace_name(pace: Pace, stages: int) -> str:
    """The name of a pace, such as "serial", "depth 2", "pipelined" or "speculative, 1 bin"."""
    if (how := pace.speculation) is None:
        return {stages: "pipelined", 1: "serial"}.get(pace.depth, f"depth {pace.depth}")
    bins = [f"{how.tolerance_bins} bin{'s' * (how.tolerance_bins > 1)}"] * (how.tolerance_bins > 0)
    passes = [f"{how.max_passes} pass{'es' * (how.max_passes > 1)}"] * (0 < how.max_passes < stages)
    return ", ".join(["speculative", *bins, *passes])


def load_policy(model: str, kv: KVName = "model") -> BuiltEngine:
    """A warmed-up engine for one session.

    kv: as in `policy.kv`; ConfigError if the family has no such setting.
    """
    settings = {} if kv == "model" else {"kv": kv}
    built = build_engine(ServiceConfig(model=model, max_sessions=1, policy=PolicyConfig.model_validate(settings)))
    warm_up(built.engine, built.limits.shift, lambda *_: None, rounds=built.rounds)
    return built


def run_episodes(
    service: VirtualService,
    condition: TableCondition,
    seeds: Sequence[int],
    period_s: float,
    sim: RobotSim | None = None,
) -> Iterator[EpisodeRun]:
    """Run one episode for each seed. sim: the robot, which is closed at the end; None = the condition's."""
    sim = sim or RobotSim(seeds[0], condition.speed, condition.jump_m)
    for seed in seeds:
        sim.reset(seed)
        delay = replace(condition.delay, seed=seed) if condition.delay else None
        yield service.run_episode(sim, condition.pace, period_s=period_s, anchored=condition.anchored, delay=delay)
    sim.close()


def result_of(
    condition: TableCondition, by_seed: Sequence[Sequence[EpisodeRun]], stages: int, period_s: float
) -> ConditionResult:
    """The figures of a condition's episodes. period_s: between camera frames."""
    runs = [run for of_seed in by_seed for run in of_seed]
    acted = [action for run in runs for action in run.acted]
    ages = [action.age_ns / 1e6 for action in acted] or [math.nan]
    late, late_played = sum(run.late for run in runs), sum(run.late_played for run in runs)
    success, seconds = success_rate([run.outcome for run in runs]), sum(run.seconds for run in runs)
    return ConditionResult(
        condition=condition,
        success=success,
        by_seed=tuple(success_rate([run.outcome for run in of_seed]) for of_seed in by_seed),
        seconds_per_success=seconds / success.successes if success.successes else math.inf,
        fps=len(acted) / seconds,
        age_mean_ms=float(np.mean(ages)),
        age_p50_ms=float(np.median(ages)),
        age_p99_ms=float(np.percentile(ages, 99)),
        passes=Counter(action.passes for action in acted),
        overtaken=sum(run.overtaken for run in runs) / max(sum(run.begun for run in runs), 1),
        unsettled=sum(0 < action.settled < stages for action in acted) / max(len(acted), 1),
        executed=execution_figures(runs, period_s),
        late=late / max(len(acted) + late - late_played, 1),
        late_played=late_played / max(len(acted), 1),
    )


def _times(name: str, built: BuiltEngine) -> tuple[str, PassTimes]:
    """The name of a device, and its pass times."""
    profile = load_profile(name)
    if profile is None:
        return THIS_MACHINE, calibrate(built.engine)
    return profile.name, profile.times_of(program_of(built.engine))


def _of_seed(
    service: VirtualService,
    condition: TableCondition,
    plan: EvaluationPlan,
    seed: int,
    progress: Callable[[str, int, int], None],
) -> Iterator[EpisodeRun]:
    first = FRESH_SEEDS + SEED_STRIDE * seed
    name = f"{condition.profile}, {condition.mode}, {condition.speed * 100:g} cm/s, seed {seed}"
    runs = run_episodes(service, condition, range(first, first + plan.episodes), plan.period_s)
    for index, run in enumerate(runs):
        progress(name, index + 1, plan.episodes)
        yield run


def eval_command(plan: EvaluationPlan, out: Path, *, as_json: bool) -> None:
    """Evaluate, print the results, and write them into the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    results: list[ConditionResult] = []
    with reporting(Console(stderr=True)) as report:
        for result in evaluate(plan, report):
            results.append(result)
            _write(results, plan, out)
    if as_json:
        print(json.dumps([result.as_json() for result in results], indent=2))
    else:
        table_console().print(_outcome_table(results, plan), _frame_table(results), _execution_table(results))
        print(f"written: {out}/report.json, {out}/success.png")


def _write(results: list[ConditionResult], plan: EvaluationPlan, out: Path) -> None:
    report = {
        "model": plan.model,
        "kv": plan.kv,
        "frame_hz": 1 / plan.period_s,
        "episodes": plan.episodes,
        "seeds": list(plan.seeds),
        "conditions": [result.as_json() for result in results],
    }
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    _plot(results, plan, out / "success.png")


def _outcome_table(results: list[ConditionResult], plan: EvaluationPlan) -> FoldingTable:
    count = plan.episodes * len(plan.seeds)
    table = FoldingTable(
        "condition", "success", "s per\nsuccess", "actions/s", "age, ms\nmean, p50, p99",
        title=f"{plan.model}, {count} episodes per row, camera {1 / plan.period_s:g} Hz",
    )  # fmt: skip
    for result in results:
        low, high = result.success.interval
        table.add_row(
            _name(result.condition),
            f"{result.success.share:.1%}\n({100 * low:.1f} to {100 * high:.1f} %)",
            f"{result.seconds_per_success:.2f}",
            f"{result.fps:.1f}",
            f"{result.age_mean_ms:.0f}, {result.age_p50_ms:.0f}, {result.age_p99_ms:.0f}",
        )
    return table


def _frame_table(results: list[ConditionResult]) -> FoldingTable:
    table = FoldingTable("condition", "passes", "overtaken", "unverified", "late", title="frames")
    for result in results:
        shares = (f"{share:.0%}" for share in (result.overtaken, result.unsettled, result.late))
        table.add_row(_name(result.condition), f"{result.passes_mean:.2f}", *shares)
    return table


def _execution_table(results: list[ConditionResult]) -> FoldingTable:
    table = FoldingTable(
        "condition", "latency, ms\np50, p95, p99, worst", "held ticks\nper minute",
        "velocity jump, mm/s\np99 at seams, inside",
        "reaction, ms\np50, p99", "answers executed as", title="execution",
        caption="latency: of executed rows; reaction: from a jump to the first command towards the new place",
    )  # fmt: skip
    for result in results:
        executed, reaction = result.executed, result.executed.reaction
        age, jump = executed.latency_at_execution_ms, executed.seams.velocity_m_s
        table.add_row(
            _name(result.condition),
            ", ".join(f"{each:.0f}" for each in (age.p50, age.p95, age.p99, age.max)),
            f"{executed.held_ticks_per_minute:.1f}",
            ", ".join(f"{1000 * each.p99:.0f}" if each.count else "-" for each in (jump.seam, jump.inside)),
            "-" if reaction is None else f"{reaction.towards.p50:.0f}, {reaction.towards.p99:.0f}",
            ", ".join(f"{name} {share:.0%}" for name, share in executed.executions.items()) or "-",
        )
    return table


def _name(condition: TableCondition) -> str:
    anchored = "" if condition.anchored else ", not anchored"
    chunks = "" if condition.execution is Execution.AUTO else f", {condition.execution.value}"
    jump = f", jump of {condition.jump_m * 100:g} cm" if condition.jump_m else ""
    return f"{condition.profile}, {condition.mode}{chunks}{anchored}, {condition.speed * 100:g} cm/s{jump}"


def _plot(results: list[ConditionResult], plan: EvaluationPlan, path: Path) -> None:
    count = plan.episodes * len(plan.seeds)
    title = f"Success of {plan.model} with its 95 % interval: {count} episodes per bar, camera {1 / plan.period_s:g} Hz"
    figure = figure_of(9.5, 0.5 * len(results) + 1.6, title)
    axes = figure.subplots()
    for place, result in enumerate(results):
        share, (low, high) = 100 * result.success.share, (100 * end for end in result.success.interval)
        axes.barh(place, share, 0.7, color=mode_colour(result.condition.mode))
        axes.errorbar(share, place, xerr=[[share - low], [high - share]], color=INK, capsize=3, linewidth=1)
        axes.annotate(f"{share:.3g}", (high, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(results)), [_name(result.condition) for result in results])
    axes.invert_yaxis()
    axes.set_xlim(0, 110)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("success, %")
    save(figure, path)
