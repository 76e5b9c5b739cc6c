"""Blocks of episodes in processes: each stores its runs in a file, so that an interrupted evaluation can go on."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.closed_loop.grid import (
    AT_ONCE,
    PERIOD_S,
    RTX5090,
    SLOW_PROFILES,
    STAGES,
    ClosedLoopCell,
    EpisodeBlock,
    blocks,
)
from edgeflow.contract import PassTimes, StageProgram
from edgeflow.engine.control.profile import PROFILES
from edgeflow.lab.demo.evaluation import THIS_MACHINE, load_policy, result_of, run_episodes
from edgeflow.lab.demo.lockstep import FRESH_SEEDS
from edgeflow.lab.demo.simulated.episodes import EpisodeRun
from edgeflow.lab.demo.simulated.service import VirtualService
from edgeflow.lab.progress import reporting
from edgeflow.model_paths import EMBEDDED_MODEL
from edgeflow.worker.calibrate import calibrate
from edgeflow_client.aging import Aging
from edgeflow_client.errors import ConfigError


def run_all(cells: Sequence[ClosedLoopCell], folder: Path, pool: Executor, commit: str, minutes: float) -> None:
    """Run the blocks of all cells that have no file in the folder yet, by rank, the longest first.

    minutes: after which no further block begins.
    ConfigError when the folder holds results of another commit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ends_s = time.monotonic() + 60 * minutes
    every = sorted((block for cell in cells for block in blocks(cell)), key=lambda block: (block.rank, -block.cost))
    missing = [block for block in every if not (folder / block.name).exists()]
    console = Console(stderr=True)
    with reporting(console) as report:
        report("pass times", 0, 1)
        times = _times(folder / "head.json", commit, pool)
        before = len(every) - len(missing)
        report("blocks of episodes", before, len(every))
        running = {
            pool.submit(run_block, block, times[block.cell.condition.profile], folder): block
            for block in (missing if minutes > 0 else [])
        }
        for done, future in enumerate(completed(running, ends_s), before + 1):
            future.result()
            report("blocks of episodes", done, len(every))
            if not console.is_terminal:
                console.print(f"{done} of {len(every)}: {running[future].name}", highlight=False)


def completed(running: Collection[Future[Any]], ends_s: float) -> Iterator[Future[Any]]:
    """Futures as they end; those that have not begun at ends_s, of the monotonic clock, are cancelled."""
    for future in as_completed(running):
        if not future.cancelled():
            yield future
        if time.monotonic() > ends_s:
            for each in running:
                each.cancel()


def run_block(block: EpisodeBlock, times: PassTimes, folder: Path) -> None:
    """Run a block's episodes and store them."""
    built = load_policy(block.cell.policy)
    condition = block.cell.condition
    aging = Aging(follow_s=condition.follow_s)
    service = VirtualService(built.engine, built.limits, times, execution=condition.execution, aging=aging)
    seeds = range(FRESH_SEEDS + block.first, FRESH_SEEDS + block.first + block.count)
    runs = run_episodes(service, condition, seeds, PERIOD_S)
    _store(folder / block.name, json.dumps([run.as_json() for run in runs]))


def stored(cell: ClosedLoopCell, folder: Path) -> list[EpisodeRun]:
    """The runs of a cell, in order, as far as its blocks have been run."""
    files = [folder / block.name for block in blocks(cell)]
    every = [run for file in files if file.exists() for run in json.loads(file.read_text())]
    return [EpisodeRun.from_json(run) for run in every]


def row(cell: ClosedLoopCell, folder: Path) -> dict[str, Any]:
    """The figures of a cell that has runs, as a JSON value."""
    delay = cell.condition.delay
    injected = {"delay_ms": delay.mean_ns / 1e6, "jitter_ms": delay.jitter_ns / 1e6} if delay else {}
    result = result_of(cell.condition, [stored(cell, folder)], STAGES, PERIOD_S)
    return {"policy": Path(cell.policy).parent.name or cell.policy, **injected, **result.as_json()}


def measured_times() -> PassTimes:
    """The pass times of the embedded policy on this machine."""
    return calibrate(load_policy(EMBEDDED_MODEL).engine)


def _times(head: Path, commit: str, pool: Executor) -> dict[str, PassTimes]:
    """Pass times by profile; this machine's are measured once, before anything else runs."""
    if not head.exists():
        measured = pool.submit(measured_times).result()
        _store(head, json.dumps({"commit": commit, "this_machine": asdict(measured)}))
    content: Mapping[str, object] = json.loads(head.read_text())
    if content["commit"] != commit:
        raise ConfigError(f"runs: {head.parent} has runs of commit {content['commit']}; this is {commit}")
    nothing = PassTimes(stages=STAGES, prefill_ns=0, two_prefills_ns=0, packed_ns=0, decode_ns=0, decodes_ns=0)
    program = StageProgram.tokens(STAGES)
    profiles = {name: PROFILES[name].times_of(program) for name in (RTX5090, *SLOW_PROFILES)}
    return {THIS_MACHINE: PassTimes(**content["this_machine"]), AT_ONCE: nothing, **profiles}  # type: ignore[arg-type]


def _store(path: Path, text: str) -> None:
    """Write a file as a whole: it is there with all of the text, or not at all."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)
