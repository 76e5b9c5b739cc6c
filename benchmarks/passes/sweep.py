"""Serial against pipelined over action lengths and prefill lengths, as in ActionFlow's Figure 5.

It uses the embedded policy's sizes and weights; its statistics are replaced by ones of K numbers, and the prompts are
random tokens, so the output means nothing but must be equal in both modes. The two modes alternate; the ratio is the
median over rounds, and stands beside the bound that the pass times allow.

    .venv/bin/python -m benchmarks.passes.sweep --json FILE
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.progress import Progress
from rich.table import Table

from benchmarks.command import keep, machine_facts, options
from edgeflow.console import progress_bar
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.policy import PreparedFrame
from edgeflow.model_paths import resolve_model
from edgeflow.models.checkpoint import Weights
from edgeflow.policies.openvla.config import ActionStatistics, load_config
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.policies.openvla.tokens import Prompter
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow_client.loadtest.terminal import table_console
from edgeflow_client.types import Mode

CPU = torch.device("cpu")
MODES = (Mode.SERIAL, Mode.PIPELINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCell:
    """One K and prefill length: medians over rounds; ratio taken round by round; passes in milliseconds."""

    action_tokens: int
    prefill_rows: int
    serial_fps: float
    pipelined_fps: float
    ratio: float
    prefill_ms: float
    decode_ms: float
    packed_ms: float
    tokens_equal: bool

    @property
    def bound(self) -> float:
        """The ratio that the pass times allow: (prefill + (K-1) decode) / packed."""
        return (self.prefill_ms + (self.action_tokens - 1) * self.decode_ms) / self.packed_ms


def main() -> None:
    """Measure and print; exit code 1 when tokens differ."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    path = resolve_model(arguments.model)
    cells = []
    with progress_bar(table_console()) as progress:
        task = progress.add_task("sweep", total=len(arguments.k) * len(arguments.prompts))
        for stages in arguments.k:
            policy = policy_with(path, stages)
            for prompt in arguments.prompts:
                cells.append(_cell(policy, prompt, arguments))
                _advance(progress, task, cells[-1])
    _print(cells, arguments)
    shares = _profile(policy, arguments.prompts[0]) if arguments.profile else {}
    if shares:
        print(f"a full pass of K = {arguments.k[-1]}, {arguments.prompts[0]} text tokens, self time by operator:")
        print("  " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
    report = {
        **machine_facts(),
        "threads": arguments.threads,
        "cells": [asdict(cell) | {"bound": cell.bound} for cell in cells],
    }
    report |= {"profile": shares}
    keep(arguments.json, report)
    raise SystemExit(0 if all(cell.tokens_equal for cell in cells) else 1)


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--model", default="demo", help="checkpoint directory, or demo (the embedded policy)")
    parser.add_argument("--k", type=int, nargs="+", default=[7, 16, 24, 32], help="action tokens")
    parser.add_argument("--prompts", type=int, nargs="+", default=[8, 32, 64, 128], help="text tokens")
    parser.add_argument("--frames", type=int, default=2, help="frames per round beyond K")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--profile", action="store_true", help="where a full pass of the last K spends its time")
    return parser.parse_args()


def policy_with(path: Path, stages: int) -> OpenVLAPolicy:
    """The policy of a checkpoint, with actions of `stages` numbers: an answer has as many tokens."""
    numbers = ActionStatistics(q01=(-1.0,) * stages, q99=(1.0,) * stages, mask=(True,) * stages)
    config = replace(load_config(path), statistics={"sweep": numbers}, action_block={})
    weights = Weights(path, torch.float32, CPU)
    return OpenVLAPolicy(config, weights, Prompter(path, vicuna=config.vicuna_prompt))


def _bench(policy: OpenVLAPolicy, prompt: int, count: int) -> tuple[PolicyEngine, list[PreparedFrame]]:
    stages = policy.K
    generator = np.random.default_rng(stages * 1000 + prompt)
    images = generator.integers(0, 256, (count, 96, 96, 3), np.uint8)
    ids = [1, *generator.integers(3, policy.config.text.vocab_size // 2, prompt - 1).tolist()]
    frames = [PreparedFrame(policy.preprocess(image), tuple(ids)) for image in images]
    return PolicyEngine(policy, stages, policy.fixed_rows + prompt + stages), frames


def _profile(policy: OpenVLAPolicy, prompt: int) -> dict[str, float]:
    """Shares of the time of full passes by operator, largest first."""
    from torch.profiler import ProfilerActivity, profile

    stages = policy.K
    engine, frames = _bench(policy, prompt, 3 * stages)
    run = OfflineRun(engine, Scheduler(limits_for(stages)), [Mode.PIPELINED])

    def feed(first: int, last: int) -> None:
        for seq in range(first, last):
            run.offer(0, seq + 1, frames[seq])
            launched = run.step()
            if launched is not None:
                run.collect(launched)

    feed(0, stages)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        feed(stages, len(frames))
    events = recorded.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    largest = sorted(events, key=lambda event: -event.self_cpu_time_total)[:10]
    return {event.key: event.self_cpu_time_total / total for event in largest}


def _cell(policy: OpenVLAPolicy, prompt: int, arguments: argparse.Namespace) -> SweepCell:
    engine, frames = _bench(policy, prompt, 2 * policy.K + arguments.frames)
    rounds = [{mode: _run(engine, frames, mode) for mode in MODES} for _ in range(arguments.rounds + 1)][1:]
    serial = [each[Mode.SERIAL] for each in rounds]
    pipelined = [each[Mode.PIPELINED] for each in rounds]
    return SweepCell(
        action_tokens=policy.K,
        prefill_rows=policy.fixed_rows + prompt,
        serial_fps=median(run.fps for run in serial),
        pipelined_fps=median(run.fps for run in pipelined),
        ratio=median(fast.fps / slow.fps for fast, slow in zip(pipelined, serial, strict=True)),
        prefill_ms=median(run.prefill_ms for run in serial),
        decode_ms=median(run.decode_ms for run in serial),
        packed_ms=median(run.packed_ms for run in pipelined),
        tokens_equal=all(run.tokens == serial[0].tokens for run in (*serial, *pipelined)),
    )


@dataclass(frozen=True, slots=True)
class _SweepRun:
    """One run."""

    fps: float
    """In steady state: frames over the time with a full pipeline."""
    tokens: list[tuple[int, ...]]
    prefill_ms: float
    decode_ms: float
    packed_ms: float


def _run(engine: PolicyEngine, frames: list[PreparedFrame], mode: Mode) -> _SweepRun:
    stages = engine.policy.K
    run = OfflineRun(engine, Scheduler(limits_for(stages)), [mode])
    waiting = list(enumerate(frames, start=1))
    passes: list[tuple[int, float]] = []  # segments, milliseconds
    tokens: dict[int, tuple[int, ...]] = {}
    prefills, decodes = [], []
    while True:
        if waiting and not run.waiting(0):
            run.offer(0, *waiting.pop(0))
        started = time.perf_counter()
        launched = run.step()
        if launched is None:
            break
        for decoded in run.collect(launched):
            tokens[decoded.sampled.frame.seq] = decoded.sampled.token_ids
        elapsed = 1e3 * (time.perf_counter() - started)
        passes.append((len(launched.planned.segments), elapsed))
        (prefills if launched.planned.prefills else decodes).append(elapsed)
    ordered = [tokens[seq] for seq in sorted(tokens)]
    if mode is Mode.SERIAL:
        fps = 1e3 * len(frames) / sum(elapsed for _, elapsed in passes)
        return _SweepRun(fps, ordered, median(prefills), median(decodes), 0.0)
    full = [elapsed for segments, elapsed in passes if segments == stages]
    return _SweepRun(1e3 * len(full) / sum(full), ordered, 0.0, 0.0, median(full))


def _advance(progress: Progress, task: object, cell: SweepCell) -> None:
    progress.update(task, advance=1, description=f"K {cell.action_tokens}, {cell.prefill_rows} rows")  # type: ignore[arg-type]


def _print(cells: list[SweepCell], arguments: argparse.Namespace) -> None:
    title = f"{arguments.model}: {arguments.threads} threads, median of {arguments.rounds} rounds, full pipelines"
    table = Table("K", "prefill rows", "serial FPS", "pipelined FPS", "ratio", "bound", "prefill / decode / packed ms",
                  "tokens", title=title)  # fmt: skip
    for cell in cells:
        table.add_row(
            str(cell.action_tokens),
            str(cell.prefill_rows),
            f"{cell.serial_fps:.1f}",
            f"{cell.pipelined_fps:.1f}",
            f"{cell.ratio:.2f}",
            f"{cell.bound:.2f}",
            f"{cell.prefill_ms:.2f} / {cell.decode_ms:.2f} / {cell.packed_ms:.2f}",
            "equal" if cell.tokens_equal else "[red]DIFFER[/]",
        )
    table_console().print(table)
    print("bound: (prefill + (K-1) decode) / packed, the ratio these pass times allow")


if __name__ == "__main__":
    main()
