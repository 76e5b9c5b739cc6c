"""Success of Meta-World's scripted experts with actions as old as those of each mode, with and without look-ahead.

    benchmarks/metaworld/setup
    .venv-metaworld/bin/python -m benchmarks.metaworld --ages CLOSED_LOOP.json --out results.json

benchmarks/metaworld/README.md explains conditions and figures.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.command import keep, machine_facts
from benchmarks.metaworld import ages
from benchmarks.metaworld.arm import ANCHORED, DEFAULT, PRESENT, WITHIN_A_STEP, OldActions
from edgeflow_client.aging import LOOK_AHEAD_S

TASKS = (
    *("push", "pick-place", "door-open", "peg-insert-side", "basketball"),
    *("assembly", "hammer", "drawer-open", "pick-place-wall", "stick-push"),
)
MOST_EPISODES = 50  # goals per task that the suite has


def main() -> None:
    """Run, print, write."""
    parser = _parser()
    arguments = parser.parse_args()
    try:
        modes = _modes(arguments)
    except (OSError, ValueError, KeyError) as error:
        parser.error(str(error))
    if find_spec("metaworld") is None:
        parser.error("no simulator here: run benchmarks/metaworld/setup, then .venv-metaworld/bin/python")
    motions = (PRESENT, ANCHORED, DEFAULT, *([WITHIN_A_STEP] if arguments.step_limits else []))
    _measure(arguments, modes, motions)


def _measure(arguments: argparse.Namespace, modes: list[ages.AgedMode], motions: tuple[OldActions, ...]) -> None:
    from benchmarks.metaworld.report import as_json, as_text
    from benchmarks.metaworld.table import measure

    rows = measure(
        modes,
        motions,
        arguments.task or TASKS,
        episodes=arguments.episodes,
        seed=arguments.seed,
        workers=arguments.workers,
    )
    print(as_text(rows))
    settings = {"episodes": arguments.episodes, "seed": arguments.seed, "look_ahead_ms": 1000 * LOOK_AHEAD_S}
    keep(arguments.out, {**machine_facts(), **settings, "conditions": as_json(rows)})


def _modes(arguments: argparse.Namespace) -> list[ages.AgedMode]:
    file = ages.measured(arguments.ages, arguments.profile, arguments.speed) if arguments.ages else []
    modes = ages.combined(file, [ages.given(text) for text in arguments.age])
    if not modes:
        raise ValueError("give --ages FILE or --age MODE=MS")
    return modes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add: Any = parser.add_argument
    add("--ages", type=Path, help="a result file of benchmarks.closed_loop")
    add("--profile", default="rtx5090", help="device profile of the ages in that file")
    add("--speed", type=float, default=5.0, help="speed of the objects at which they were measured, cm/s")
    add("--age", action="append", default=[], metavar="MODE=MS", help="an age by hand; repeatable")
    add("--task", action="append", choices=TASKS, help="default: all ten; repeatable")
    add("--episodes", type=int, choices=range(1, MOST_EPISODES + 1), default=MOST_EPISODES, metavar="1..50")
    add("--seed", type=int, default=3, help="draws the goals")
    add("--step-limits", action="store_true", help="also look ahead within the limits of one step")
    add("--workers", type=int, default=2, help="processes, each with a task at a time")
    add("--out", type=Path, help="write the figures here")
    return parser


if __name__ == "__main__":
    main()
