"""Success, rate and age of the embedded policy in closed loop: every mode, three object speeds, two devices.

    .venv/bin/python -m benchmarks.closed_loop --json FILE

Episodes run in simulated time with the real scheduler and engine, so only "this machine" depends on how fast this
machine is. All conditions run the same episodes. Finished blocks of episodes are stored in --runs, and a run that was
interrupted goes on there. Blocks that do not begin within --minutes are left out: each condition says how many episodes
it has.

Writes FILE, and beside it a file with `-figures` in its name, which holds distributions: success against delay, age in
force, reaction latency, ticks without a new action. `python -m benchmarks.pictures FILE ...` draws both.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.closed_loop.episode_blocks import row, run_all, stored
from benchmarks.closed_loop.grid import MOVING, PERIOD_S, ClosedLoopCell, cells
from benchmarks.closed_loop.measures import PERCENTS, measures
from benchmarks.closed_loop.targets import targets
from benchmarks.command import keep, machine_facts, options


def main() -> None:
    """Run what is missing, print every condition, and write the results."""
    arguments = _arguments()
    every = cells(arguments.policy, arguments.most)
    facts, began_s = machine_facts(), time.monotonic()
    pool = ProcessPoolExecutor(arguments.workers, get_context("spawn"))
    try:
        run_all(every, arguments.runs, pool, str(facts["commit"]), arguments.minutes)
    finally:
        pool.shutdown(cancel_futures=True)
    wanted = sum(cell.episodes for cell in every)
    every = [cell for cell in every if stored(cell, arguments.runs)]
    facts |= {
        "episodes_wanted": wanted,
        "model": "demo",
        "frame_hz": 1 / PERIOD_S,
        "minutes_of_this_run": (time.monotonic() - began_s) / 60,
    }
    rows = [row(cell, arguments.runs) for cell in every]
    for each in rows:
        print(_line(each), flush=True)
    reached = targets(rows)
    for each in reached:
        print(f"{each['figure']}: {each['measured']:.3g}, {each['target']}{'' if each['met'] else ': missed'}")
    if arguments.json is not None:
        _write(arguments.json, facts, rows, reached, _figures(every, arguments.runs))


def _write(
    path: Path, facts: dict[str, Any], rows: list[dict[str, Any]], reached: list[dict[str, Any]], figures: list[Any]
) -> None:
    keep(path, {**facts, "targets": reached, "conditions": rows})
    beside = path.with_name(path.name.replace("closed-loop", "closed-loop-figures", 1))
    keep(beside, {**facts, "percents": PERCENTS, "conditions": figures})


def _figures(every: list[ClosedLoopCell], runs: Path) -> list[dict[str, Any]]:
    """The figures of anchored cells of the embedded policy at the middle speed, with their measures."""
    return [
        {**row(cell, runs), **measures(stored(cell, runs))}
        for cell in every
        if cell.condition.speed == MOVING and cell.condition.anchored and cell.policy == "demo"
    ]


def _line(row: dict[str, Any]) -> str:
    low, high = row["interval_95"]
    share = f"{row['successes']} of {row['episodes']} ({100 * low:.1f} to {100 * high:.1f} %)"
    injected = f", delay {row['delay_ms']:g} +- {row['jitter_ms']:g} ms" if "delay_ms" in row else ""
    anchored = "" if row["anchored"] else ", not anchored"
    head = f"{row['policy']}, {row['profile']}, {row['mode']}{injected}{anchored}, {row['speed_cm_s']:g} cm/s"
    rest = (row["seconds_per_success"], row["fps"], row["age_mean_ms"], row["age_p99_ms"], row["passes_mean"])
    numbers = ["-" if value is None else f"{value:.3g}" for value in rest]
    return (
        f"{head}: {share}, {numbers[0]} s per success; {numbers[1]} actions/s, age {numbers[2]} ms (p99 {numbers[3]}),"
        f" {numbers[4]} passes, overtaken {row['overtaken']:.0%}, unverified {row['unsettled']:.0%}"
    )


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--policy", action="append", default=[], help="directory of a policy of another training seed")
    parser.add_argument("--runs", type=Path, default=Path("closed-loop-runs"), help="directory of finished blocks")
    parser.add_argument("--minutes", type=float, default=60, help="begin no further block of episodes after so many")
    parser.add_argument("--workers", type=int, default=2, help="processes, with one thread each")
    parser.add_argument("--most", type=int, help="episodes per condition, to try it out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
