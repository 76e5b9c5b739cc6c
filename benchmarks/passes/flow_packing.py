"""Chunks per second of two robots with a flow policy: their steps packed into shared passes, or one after the other.

1. one after the other: each frame by itself, a pass for its prefix and one for each step
2. pipelined, one after the other: each robot's frames share passes, the robots do not
3. side by side: serial frames, whose passes the robots share
4. packed: the steps of both robots' frames in flight with the newest prefixes

The systems take turns, so that a machine that slows down slows all of them; ratios are taken round by round. Chunks are
compared with the first system's. A second table says where the time of a pass goes.

    .venv/bin/python -m benchmarks.passes.flow_packing --json FILE
    .venv/bin/python -m benchmarks.passes.flow_packing --model CHECKPOINT
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.command import keep, machine_facts, options
from edgeflow.engine.control.engine import EngineOptions, FlowEngine, flow_engine
from edgeflow.engine.control.history import first_prompts
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.control.samples import sample_observations
from edgeflow.engine.control.warmup import chunk_objection
from edgeflow.engine.flow.frames import FlowFrame, FlowSizes
from edgeflow.engine.flow.policy import FlowPolicy
from edgeflow.engine.policy import INSTRUCTION, LoadOptions, Placement
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.model_paths import resolve_model
from edgeflow.models.grouped import CROSS, JOINT
from edgeflow.policies.registry import family_of
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow_client.loadtest.terminal import table_console
from edgeflow_client.types import Mode
from tests.engine.flow.tiny_flow import Shape, TinyFlowPolicy

CPU = torch.device("cpu")
ROBOTS = 2
RATE_HZ = 30.0  # rate of a checkpoint's actions; it has no influence
TINY = Shape(
    sizes=FlowSizes(steps=10, horizon=20, dims=8, closing=1, causal=True),
    kinds=(JOINT, CROSS) * 4,
    width=192,
    expert=144,
    heads=6,
    head_dim=32,
)
"""Roughly the size of a policy for demonstrations."""
SYSTEMS = {
    "one after the other": (Mode.SERIAL, 1),
    "pipelined, one after the other": (Mode.PIPELINED, 1),
    "side by side": (Mode.SERIAL, 1 << 30),
    "packed": (Mode.PIPELINED, 1 << 30),
}
FIRST, *_, PACKED = SYSTEMS


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingRow:
    """One system: chunks per second over rounds, and the ratio to the first system's, round by round."""

    system: str
    chunks_s: float
    ratio_median: float
    ratio_min: float
    ratio_max: float
    pass_ms: float
    equal: bool


def main() -> None:
    """Measure and print; exit code 1 when chunks differ."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    policy: Any = _policy(arguments.model)
    frames = _frames(policy, arguments.frames)
    engine = _engine(policy)
    _round(engine, frames[:2])
    rounds = [_round(engine, frames) for _ in range(arguments.rounds)]
    rows = [_row(name, rounds) for name in SYSTEMS]
    parts = {name: _parts(engine, frames, name) for name in (FIRST, PACKED)}
    _print(rows, parts, arguments, policy.network.prefix_rows(frames[0]), policy.sizes)
    asked = {key: str(value) for key, value in vars(arguments).items() if key != "json"}
    found = {"rows": [asdict(row) for row in rows], "ms_per_chunk": parts}
    facts = {**machine_facts(), "instructions": torch.backends.cpu.get_cpu_capability()}
    keep(arguments.json, {**facts, **asked, **found})
    raise SystemExit(0 if all(row.equal for row in rows) else 1)


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--model", default="tiny", help="checkpoint directory, or tiny (random weights)")
    parser.add_argument("--frames", type=int, default=24, help="frames of each robot in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def _policy(name: str) -> FlowPolicy:
    if name == "tiny":
        return TinyFlowPolicy(TINY)
    path: Path = resolve_model(name)
    published = family_of(path).load(path, {"control_rate_hz": RATE_HZ}, LoadOptions())
    policy: Any = published.load(Placement(dtype=torch.float32, device=CPU, table=built_in_table()))
    return policy


def _frames(policy: FlowPolicy, count: int) -> list[FlowFrame]:
    with first_prompts(policy, list(sample_observations(policy.inputs, count, INSTRUCTION))) as frames:
        return frames


def _engine(policy: FlowPolicy) -> FlowEngine:
    text_rows = policy.text_rows(INSTRUCTION)
    return flow_engine(policy, EngineOptions(sessions=ROBOTS, text_rows=text_rows, table=built_in_table()))


def _run(engine: FlowEngine, frames: list[FlowFrame], system: str) -> tuple[float, int, NDArray[np.float64]]:
    """Seconds, passes, and the chunks of the first robot."""
    mode, budget = SYSTEMS[system]
    scheduler = Scheduler(limits_for(engine.policy.sizes.program.passes, sessions=ROBOTS, row_budget=budget))
    run = OfflineRun(engine, scheduler, [mode] * ROBOTS)
    began = time.perf_counter()
    chunks = run.decode([frames] * ROBOTS)
    seconds = time.perf_counter() - began
    values = [each.sampled.values for each in chunks[0] if each.sampled.values is not None]
    return seconds, scheduler.counts.passes, np.stack(values)


def _round(engine: FlowEngine, frames: list[FlowFrame]) -> dict[str, tuple[float, int, NDArray[np.float64]]]:
    return {name: _run(engine, frames, name) for name in SYSTEMS}


def _row(name: str, rounds: list[dict[str, tuple[float, int, NDArray[np.float64]]]]) -> PackingRow:
    seconds = np.array([each[name][0] for each in rounds])
    ratios = np.array([each[FIRST][0] for each in rounds]) / seconds
    chunks = ROBOTS * len(rounds[0][name][2])
    return PackingRow(
        system=name,
        chunks_s=float(np.median(chunks / seconds)),
        ratio_median=float(np.median(ratios)),
        ratio_min=float(ratios.min()),
        ratio_max=float(ratios.max()),
        pass_ms=float(np.median(seconds)) / rounds[0][name][1] * 1e3,
        equal=not any(chunk_objection(each[FIRST][2], each[name][2], None) for each in rounds),
    )


def _parts(engine: FlowEngine, frames: list[FlowFrame], system: str) -> dict[str, float]:
    """Milliseconds per chunk of the parts of a pass."""
    spent: defaultdict[str, float] = defaultdict(float)
    network: Any = cast("Any", engine.policy).network
    decoder = network.decoder

    def attention(*arguments: Any) -> Callable[..., Any]:
        with _timed(spent, "attention"):
            attend = plain_attention(*arguments)
        return _watched(spent, "attention", attend)

    plain_attention = decoder._attention
    watched = [
        (engine.stages, "place", "layout"),
        (network, "embed_prefix", "prefix embedding"),
        (network, "embed_step", "step embedding"),
        (network, "velocity", "velocity"),
        (decoder, "forward", "layers"),
        (engine, "launch", "launch"),
    ]
    patches = [patch.object(of, name, _watched(spent, part, getattr(of, name))) for of, name, part in watched]
    patches.append(patch.object(decoder, "_attention", attention))
    for each in patches:
        each.start()
    seconds, _, chunks = _run(engine, frames, system)
    for each in patches:
        each.stop()
    spent["linears, norms, rotations"] = spent.pop("layers") - spent["attention"]
    known = sum(each for part, each in spent.items() if part != "launch")
    spent["state, guidance, copies"] = spent.pop("launch") - known
    spent["scheduler and collecting"] = seconds - sum(spent.values())
    return {part: each / (ROBOTS * len(chunks)) * 1e3 for part, each in spent.items()}


@contextmanager
def _timed(spent: dict[str, float], part: str) -> Iterator[None]:
    began = time.perf_counter()
    try:
        yield
    finally:
        spent[part] += time.perf_counter() - began


def _watched(spent: dict[str, float], part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def watched(*arguments: Any, **named: Any) -> Any:
        with _timed(spent, part):
            return function(*arguments, **named)

    return watched


def _print(
    rows: list[PackingRow],
    parts: dict[str, dict[str, float]],
    arguments: argparse.Namespace,
    prefix: int,
    sizes: FlowSizes,
) -> None:
    title = (
        f"{arguments.model}: {ROBOTS} robots, {arguments.threads} threads, prefix of {prefix} rows, "
        f"{sizes.steps} steps of {sizes.step_rows}"
    )
    table = Table("system", "chunks/s", "ratio", "min .. max", "ms per pass", "chunks", title=title)
    for row in rows:
        table.add_row(
            row.system,
            f"{row.chunks_s:.2f}",
            f"{row.ratio_median:.2f}",
            f"{row.ratio_min:.2f} .. {row.ratio_max:.2f}",
            f"{row.pass_ms:.1f}",
            "equal" if row.equal else "[red]DIFFER[/]",
        )
    table_console().print(table)
    profile = Table("ms per chunk", *parts, title="where the time goes")
    for part in parts[FIRST]:
        profile.add_row(part, *(f"{of_system[part]:.2f}" for of_system in parts.values()))
    profile.add_row("all", *(f"{sum(of_system.values()):.2f}" for of_system in parts.values()))
    table_console().print(profile)


if __name__ == "__main__":
    main()
