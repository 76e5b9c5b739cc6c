"""The cost of a steady speculative pass of the embedded policy, in full pipelined passes.

    .venv/bin/python -m benchmarks.passes.speculative --json benchmarks/results/speculative-pass-cpu-DATE.json

Frames are those of episodes that the expert acts out, in order, 50 ms apart, one per pass. Both modes take turns,
episode by episode, and the ratio is taken per episode. Passes while the pipeline fills are left out.
"""

from __future__ import annotations

from statistics import mean, median
from time import perf_counter_ns

import numpy as np
import torch
from rich.progress import track

from benchmarks.command import keep, machine_facts, options
from edgeflow.config.service import ServiceConfig
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.policy import PreparedFrame
from edgeflow.lab.demo.lockstep import FRESH_SEEDS, apply_action
from edgeflow.lab.demo.world.expert import Expert
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.worker.build import build_engine
from edgeflow_client.types import Mode

BAR = 1.25
PERIOD_S = 0.05


def main() -> None:
    """Measure and print; exit code 1 when the bar is missed."""
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--speed", type=float, default=5.0, help="of the objects, cm/s")
    arguments = parser.parse_args()
    engine = build_engine(ServiceConfig(max_sessions=1)).engine
    torch.set_num_threads(1)
    sim = RobotSim(FRESH_SEEDS, arguments.speed / 100)
    times: dict[Mode, list[float]] = {Mode.PIPELINED: [], Mode.SPECULATIVE: []}
    rows: dict[Mode, list[float]] = {Mode.PIPELINED: [], Mode.SPECULATIVE: []}
    for index in track(range(arguments.episodes), description="episodes"):
        sim.reset(FRESH_SEEDS + index)
        frames = _frames(engine, sim)
        for mode in times if index % 2 else reversed(times):
            passes = _passes(engine, mode, frames)
            times[mode].append(median(ms for ms, _ in passes))
            rows[mode].append(mean(count for _, count in passes))
    ratios = [one / other for one, other in zip(times[Mode.SPECULATIVE], times[Mode.PIPELINED], strict=True)]
    ratio = median(ratios)
    for mode in times:
        print(f"{mode.value}: {median(times[mode]):.2f} ms per pass, {mean(rows[mode]):.1f} rows")
    print(f"speculative / pipelined: {ratio:.2f} (bar {BAR}): {'met' if ratio <= BAR else 'MISSED'}")
    figures = {mode.value: {"ms": median(times[mode]), "rows": mean(rows[mode])} for mode in times}
    keep(arguments.json, {**machine_facts(), "episodes": arguments.episodes, "modes": figures, "ratio": ratio})
    raise SystemExit(0 if ratio <= BAR else 1)


def _frames(engine: PolicyEngine, sim: RobotSim) -> list[PreparedFrame]:
    """The frames of the camera while the expert acts."""
    ids, expert = engine.policy.prompt_ids(sim.instruction), Expert(sim)
    frames: list[PreparedFrame] = []
    while sim.outcome is EpisodeOutcome.RUNNING:
        image = sim.capture()
        frames.append(PreparedFrame(engine.policy.preprocess(image), ids))
        apply_action(sim, sim.pose(), np.asarray(expert(image, sim.instruction)))
        sim.step(PERIOD_S)
    return frames


def _passes(engine: PolicyEngine, mode: Mode, frames: list[PreparedFrame]) -> list[tuple[float, int]]:
    """Milliseconds and rows of each pass that takes a frame, once the pipeline is full."""
    run = OfflineRun(engine, Scheduler(limits_for(engine.policy.K)), [mode])
    found: list[tuple[float, int]] = []
    for seq, frame in enumerate(frames, start=1):
        run.offer(0, seq, frame)
        started_ns = perf_counter_ns()
        launched = run.step()
        if launched is None:
            raise RuntimeError("a frame was offered, and no pass followed")
        run.collect(launched)
        found.append(((perf_counter_ns() - started_ns) / 1e6, launched.planned.rows))
    return found[engine.policy.K :]


if __name__ == "__main__":
    main()
