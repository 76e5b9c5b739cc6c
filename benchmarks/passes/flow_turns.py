"""Passes of flow policies in their published shapes on this processor, beside another checkout of this repository.

    .venv/bin/python -m benchmarks.passes.flow_turns OTHER --json FILE

Random weights. `π0.5` has its expert in the published shape over a prefix of the published length, whose own layers are
narrow: they and the towers would take gigabytes, and no step reads them. Both checkouts run this file's child at once
and measure in turn, each with the interpreter in its `.venv`. Ratios are the other's time over this one's, round by
round. Exit code 1 where the median of one is below its bar.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.command import keep, machine_facts, options

HERE = Path(__file__).resolve()
SHAPES = ("π0.5", "SmolVLA")
FIGURES = ("prefix", "step", "chunk")
BARS = {("π0.5", "step"): 1.2, ("SmolVLA", "chunk"): 0.97}
"""The least ratio: a step of π0.5 without its modulation; the scatter of equal chunks."""
FRAMES = 2
"""The frames of a round, the first of which warms up."""
Rounds = list[dict[str, tuple[float, ...]]]
"""Milliseconds of the FIGURES by checkout, "this" and "other"."""


def main() -> int:
    """Measure and print; 1 where a ratio is below its bar."""
    arguments = _arguments()
    slow, report = False, {}
    for name in arguments.shapes:
        rounds = _rounds(arguments, name)
        for index, figure in enumerate(FIGURES):
            ratios = sorted(each["other"][index] / each["this"][index] for each in rounds)
            ms = {side: statistics.median(each[side][index] for each in rounds) for side in ("other", "this")}
            ratio = statistics.median(ratios)
            slow |= ratio < BARS.get((name, figure), 0.0)
            report[f"{name} {figure}"] = {**ms, "ratio": ratio, "ratios": ratios}
            print(
                f"{name} {arguments.dtype} {figure}: {ms['other']:.1f} ms, here {ms['this']:.1f} ms, "
                f"ratio {ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )
    asked = {"other": _commit(arguments.other), "dtype": arguments.dtype, "threads": arguments.threads}
    keep(arguments.json, {**machine_facts(), **asked, "figures": report})
    return int(slow)


def _rounds(arguments: argparse.Namespace, name: str) -> Rounds:
    checkouts = {"this": HERE.parents[2], "other": arguments.other.resolve()}
    with ExitStack() as stack:
        sides = {side: stack.enter_context(_child(path, name, arguments)) for side, path in checkouts.items()}
        found: Rounds = []
        for number in range(arguments.rounds + 1):
            order = list(sides) if number % 2 else list(sides)[::-1]
            times = {side: _ask(sides[side]) for side in order}
            if number:
                found.append(times)
    return found


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@contextmanager
def _child(checkout: Path, name: str, arguments: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    python = checkout / ".venv/bin/python"
    command = [str(python if python.exists() else sys.executable), str(HERE), str(checkout), "--child", name]
    command += ["--dtype", arguments.dtype, "--threads", str(arguments.threads)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=checkout, env=environment
    ) as process:
        yield process
        cast("Any", process.stdin).close()


def _ask(process: subprocess.Popen[str]) -> tuple[float, ...]:
    stdin, stdout = cast("Any", process.stdin), cast("Any", process.stdout)
    stdin.write("\n")
    stdin.flush()
    line = stdout.readline()
    if not line:
        raise RuntimeError("a checkout's side ended; its messages are above")
    return tuple(json.loads(line))


def _answer(arguments: argparse.Namespace) -> None:
    """A line of milliseconds for each line of the input."""
    import torch

    from edgeflow.engine.placement import operator_table
    from edgeflow.lab.gpu.sections import flow_speed
    from edgeflow.lab.gpu.subjects.random_flow import PUBLISHED
    from edgeflow.policies.pi.config import PiConfig

    torch.set_num_threads(arguments.threads)
    dtype, device = getattr(torch, arguments.dtype), torch.device("cpu")
    shape = next(each for each in PUBLISHED if each.name == arguments.child)
    if isinstance(shape.config, PiConfig):
        config = shape.config
        text = replace(config.text, width=64, inner=64)
        vision = replace(config.vision, width=64, inner=64, depth=1, heads=2)
        shape = replace(shape, config=replace(config, text=text, vision=vision))
    table = operator_table(None, "float", device, dtype)
    setting: Any = SimpleNamespace(dtype=dtype, device=device, table=lambda _: table)
    made: Any = flow_speed.flow_engine_of
    if hasattr(flow_speed, "flow_policy_of"):
        engine = made(flow_speed.flow_policy_of(shape, setting), 1)
    else:  # of commit b751f919 and before
        engine = made(shape, setting, 1)
    frames = shape.frames(FRAMES)
    for _ in sys.stdin:
        print(json.dumps(flow_speed.serial_ms(engine, frames)), flush=True)


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("other", type=Path, help="the root of the other checkout")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", choices=SHAPES, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    if (asked := _arguments()).child:
        _answer(asked)
    else:
        sys.exit(main())
