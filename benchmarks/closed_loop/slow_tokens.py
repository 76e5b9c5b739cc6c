"""A token policy on slow devices: modes, passes per answer, rests, and targets that follow their goal.

    .venv/bin/python -m benchmarks.closed_loop.slow_tokens --json FILE

The embedded policy, on objects that stand still and that move at 2.5 and 5 cm/s, at the pass times of four devices.
Episodes run in simulated time with the real scheduler and engine. Finished cells are stored in --runs, and a run that
was interrupted goes on there. 20 episodes of every cell take about an hour of two cores, --most 1 a few minutes.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.closed_loop.episode_blocks import row, run_all, stored
from benchmarks.closed_loop.grid import (
    EXACT,
    ONE_BIN,
    ONE_PASS,
    PERIOD_S,
    PIPELINED,
    RTX5090,
    SERIAL,
    SLOW_PROFILES,
    ClosedLoopCell,
    condition,
)
from benchmarks.command import keep, machine_facts, options
from edgeflow.contract import Pace, Speculation
from edgeflow_client.types import Execution

TWO_PASSES, THREE_PASSES = (Pace(0, Speculation(0, passes)) for passes in (2, 3))
VERIFIED = (SERIAL, Pace(2), Pace(4), PIPELINED, EXACT, ONE_BIN)
PACES = (*VERIFIED, THREE_PASSES, TWO_PASSES, ONE_PASS)
RESTED = (SERIAL, EXACT, ONE_PASS)
FOLLOWED = (SERIAL, EXACT, TWO_PASSES, ONE_PASS)
FOLLOW_S = 0.6
SPEEDS = (0.0, 0.025, 0.05)  # of the objects, m/s
PROFILES = (*SLOW_PROFILES, RTX5090)
EPISODES = 20


def slow_cells(episodes: int = EPISODES) -> list[ClosedLoopCell]:
    """Every pace, some with rests and some with targets that follow, at each device and speed; and what auto does."""
    return [
        ClosedLoopCell(condition(pace, speed, profile, **robot), episodes)
        for profile, speed in itertools.product(PROFILES, SPEEDS)
        for pace, robot in _ways()
    ]


def _ways() -> Iterator[tuple[Pace, dict[str, Any]]]:
    yield EXACT, {"execution": Execution.AUTO}
    yield from ((pace, {"execution": Execution.FRESH}) for pace in PACES)
    yield from ((pace, {"execution": Execution.REST}) for pace in RESTED)
    yield from ((pace, {"execution": Execution.FRESH, "follow_s": FOLLOW_S}) for pace in FOLLOWED)


def best(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each device and speed the way with most successes, of equal ones the fastest: with verified tokens, and any.

    `auto` is what mode and execution auto choose: exact drafts, with rests where passes are long.
    """
    found: list[dict[str, Any]] = []
    for profile, speed in itertools.product(PROFILES, SPEEDS):
        here = [each for each in rows if (each["profile"], each["speed_cm_s"]) == (profile, speed * 100)]
        plain = [each for each in here if not each["follow_s"]]
        auto = [each for each in plain if (each["mode"], each["execution"]) == ("speculative", "auto")]
        verified = [each for each in plain if each["unsettled"] == 0.0 and each["execution"] != "auto"]
        if auto and verified:
            chosen = {"auto": auto[0], "verified": max(verified, key=_merit), "any": max(here, key=_merit)}
            found.append({"profile": profile, "speed_cm_s": speed * 100, **{k: _short(v) for k, v in chosen.items()}})
    return found


def _merit(row: dict[str, Any]) -> tuple[float, float]:
    return row["success"], -(row["seconds_per_success"] or 1e9)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    names = ("mode", "execution", "follow_s", "successes", "episodes", "seconds_per_success")
    return {name: row[name] for name in names}


def main() -> None:
    """Run what is missing, print every cell, and write the results."""
    arguments = _arguments()
    every, facts, began_s = slow_cells(arguments.most), machine_facts(), time.monotonic()
    pool = ProcessPoolExecutor(arguments.workers, get_context("spawn"))
    try:
        run_all(every, arguments.runs, pool, str(facts["commit"]), arguments.minutes)
    finally:
        pool.shutdown(cancel_futures=True)
    rows = [row(cell, arguments.runs) for cell in every if stored(cell, arguments.runs)]
    for each in rows:
        del each["seams"]  # of chunks
        way = f"{each['mode']}, {each['execution']}" + (f", follows {each['follow_s']:g} s" * bool(each["follow_s"]))
        took = each["seconds_per_success"]
        print(
            f"{each['profile']}, {each['speed_cm_s']:g} cm/s, {way}: {each['successes']} of {each['episodes']},"
            f" {'-' if took is None else f'{took:.2f}'} s per success, latency {each['age_mean_ms'] or 0:.0f} ms"
        )
    facts |= {"model": "demo", "frame_hz": 1 / PERIOD_S, "minutes_of_this_run": (time.monotonic() - began_s) / 60}
    keep(arguments.json, {**facts, "follow_s": FOLLOW_S, "best": best(rows), "conditions": rows})


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("slow-tokens-runs"), help="directory of finished blocks")
    parser.add_argument("--minutes", type=float, default=180, help="begin no further block of episodes after so many")
    parser.add_argument("--workers", type=int, default=2, help="processes, with one thread each")
    parser.add_argument("--most", type=int, default=EPISODES, help="episodes per cell")
    return parser.parse_args()


if __name__ == "__main__":
    main()
