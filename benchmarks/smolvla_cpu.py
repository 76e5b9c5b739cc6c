"""Milliseconds per chunk at SmolVLA-450M's sizes on this processor, beside LeRobot's own policy on the same weights.

    .venv/bin/python -m benchmarks.smolvla_cpu --lerobot-python ENVIRONMENT/bin/python --json FILE

Random weights, frames of one and of three cameras of 640x480, text padded to 48 tokens. LeRobot runs in an environment
of its own; without one its side is skipped. The sides answer in turn, one chunk at a time. On a machine that others use
too, look at the best of the rounds, or at the processor time with --threads 1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import keep, options
from benchmarks.machine import machine_facts
from benchmarks.smolvla.inputs import write_inputs
from benchmarks.smolvla.random_smolvla import write_smolvla

DTYPES = ("float32", "bfloat16")
CAMERAS = (1, 3)
BAR = 0.8  # of the time of LeRobot's better type
HELPER = Path(__file__).parent / "smolvla" / "lerobot_chunks.py"
Chunk = Mapping[str, Any]
"""chunk_ms; cpu_ms, its processor time; parts_ms by name, which add up to chunk_ms; step_ms of each denoising step."""


@dataclass(frozen=True, slots=True)
class LeRobot:
    """LeRobot's policy in a process of its own."""

    process: subprocess.Popen[str]

    def chunk(self, cameras: int) -> Chunk:
        """Compute a chunk from the first cameras. RuntimeError when the process has ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{cameras}\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> Chunk:
        """The next line of its answers."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("LeRobot's side ended; its messages are above")
        answer: Chunk = json.loads(line)
        return answer


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = write_smolvla(folder / "smolvla-450m", arguments.tokenizer)
        inputs = write_inputs(folder / "inputs.safetensors", arguments.tokenizer / "tokenizer.json")
        figures = {dtype: _lerobot(arguments, model, inputs, dtype) for dtype in arguments.dtypes}
    for dtype, by_cameras in figures.items():
        for cameras, figure in by_cameras.items():
            parts = ", ".join(f"{name} {value:.0f}" for name, value in figure["parts_ms"].items())
            times = ", ".join(f"{figure[f'{name}_ms']:.0f} ms {name}" for name in ("chunk", "best", "cpu"))
            print(f"LeRobot {dtype}, {cameras} cameras: {times}: {parts}")
    facts = {**machine_facts(), "threads": arguments.threads, "rounds": arguments.rounds}
    keep(arguments.json, {**facts, "lerobot": figures})


def _lerobot(arguments: argparse.Namespace, model: Path, inputs: Path, dtype: str) -> dict[int, Chunk]:
    """Medians of LeRobot's rounds by the number of cameras; none without an environment."""
    if arguments.lerobot_python is None:
        print("LeRobot: skipped: give the interpreter of an environment that has it with --lerobot-python")
        return {}
    with lerobot(arguments.lerobot_python, model, inputs, dtype, arguments.threads) as side:
        for cameras in CAMERAS:
            side.chunk(cameras)
        rounds = [{cameras: side.chunk(cameras) for cameras in CAMERAS} for _ in range(arguments.rounds)]
    return {cameras: medians([found[cameras] for found in rounds]) for cameras in CAMERAS}


@contextmanager
def lerobot(python: Path, model: Path, inputs: Path, dtype: str, threads: int) -> Iterator[LeRobot]:
    """LeRobot's policy, loaded."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": ""}
    command = [str(python), str(HELPER), str(model), str(inputs), dtype, str(threads)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        side = LeRobot(process)
        side.answer()
        yield side
        assert process.stdin is not None
        process.stdin.close()


def medians(chunks: Sequence[Chunk]) -> Chunk:
    """The median of each figure."""
    names = chunks[0]["parts_ms"]
    return {
        "chunk_ms": statistics.median(chunk["chunk_ms"] for chunk in chunks),
        "best_ms": min(chunk["chunk_ms"] for chunk in chunks),
        "cpu_ms": statistics.median(chunk["cpu_ms"] for chunk in chunks),
        "parts_ms": {name: statistics.median(chunk["parts_ms"][name] for chunk in chunks) for name in names},
        "step_ms": statistics.median(step for chunk in chunks for step in chunk["step_ms"]),
        "chunks_ms": [round(chunk["chunk_ms"], 1) for chunk in chunks],
    }


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--lerobot-python", type=Path, help="interpreter of an environment with LeRobot's SmolVLA")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of tokenizer.json, ids below 49280")
    parser.add_argument(
        "--folder", type=Path, help="where the 0.9 GB of weights are written, and kept for the next run"
    )
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
