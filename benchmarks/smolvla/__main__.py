"""Milliseconds per chunk at SmolVLA-450M's sizes on this processor, beside LeRobot's policy on the same weights.

    .venv/bin/python -m benchmarks.smolvla --lerobot-python ENVIRONMENT/bin/python --json FILE

Random weights, frames of one and of three cameras of 640x480, text padded to 48 tokens, the same noise for both sides.
LeRobot runs in a separate environment; without one its side is skipped. The sides answer in turn, one chunk at a
time. On a machine that others use too, look at the best of the rounds, or at the processor time with --threads 1. Exit
code 1 where the actions differ by more than their type explains, or where this side takes more than 0.8 of LeRobot's
time, each in its better type: the best of the rounds, or with one thread the processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.command import keep, machine_facts, options
from benchmarks.smolvla.edgeflow_chunks import EdgeflowChunks
from benchmarks.smolvla.random_smolvla import write_inputs, write_smolvla

DTYPES = ("float32", "bfloat16")
CAMERAS = (1, 3)
BAR = 0.8  # of the time of LeRobot's better type
DIFFERENCE = {"float32": 1e-4, "bfloat16": 0.05}
"""Limits on differences of normalised actions, which go up to 5. LeRobot's own results in bfloat16 differ by 0.02 from
those in float32.
"""
HELPER = Path(__file__).parent / "lerobot_chunks.py"
Chunk = Mapping[str, Any]
"""chunk_ms; cpu_ms, its processor time; parts_ms by name, which add up to chunk_ms; step_ms of each denoising step."""


OURS, THEIRS = "edgeflow", "LeRobot"


@dataclass(frozen=True, slots=True)
class LeRobot:
    """LeRobot's policy in a separate process."""

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


def main() -> int:
    """Measure and print; 1 where this side is not as it should be."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = write_smolvla(folder / "smolvla-450m", arguments.tokenizer)
        inputs = write_inputs(folder / "inputs.safetensors", arguments.tokenizer / "tokenizer.json")
        figures = {dtype: _rounds(arguments, model, inputs, dtype) for dtype in arguments.dtypes}
    for dtype, sides in figures.items():
        for side, by_cameras in sides.items():
            for cameras, figure in by_cameras.items():
                print(f"{side} {dtype}, {cameras} cameras: {_text(figure)}")
    judged = {cameras: _judged(figures, cameras) for cameras in CAMERAS} if arguments.lerobot_python else {}
    for cameras, ratios in judged.items():
        print(f"{cameras} cameras: " + ", ".join(f"{name} {value:.3g}" for name, value in ratios.items()))
    facts = {**machine_facts(), "threads": arguments.threads, "rounds": arguments.rounds}
    keep(arguments.json, {**facts, "figures": figures, "ratios": judged})
    kind = "cpu" if arguments.threads == 1 else "best"
    slow = [each for each in judged.values() if each[kind] > BAR]
    far = [
        dtype
        for dtype, sides in figures.items()
        for figure in sides[OURS].values()
        if figure.get("difference", 0.0) > DIFFERENCE[dtype]
    ]
    return int(bool(slow or far))


def _rounds(arguments: argparse.Namespace, model: Path, inputs: Path, dtype: str) -> dict[str, dict[int, Chunk]]:
    """Medians of the rounds by side and number of cameras; LeRobot's only with an environment."""
    with ExitStack() as stack:
        sides: dict[str, EdgeflowChunks | LeRobot] = {OURS: EdgeflowChunks(model, inputs, dtype)}
        if arguments.lerobot_python is None:
            print("LeRobot: skipped: give the interpreter of an environment that has it with --lerobot-python")
        else:
            command = arguments.lerobot_python, model, inputs, dtype, arguments.threads
            sides[THEIRS] = stack.enter_context(lerobot(*command))
        found: dict[str, dict[int, list[Chunk]]] = {name: {each: [] for each in CAMERAS} for name in sides}
        for number in range(arguments.rounds + 1):
            for cameras in CAMERAS:
                for name, side in sides.items():
                    chunk = side.chunk(cameras)
                    if number:
                        found[name][cameras].append(chunk)
        medianed = {name: {cameras: medians(chunks) for cameras, chunks in by.items()} for name, by in found.items()}
        if THEIRS in sides:
            for cameras in CAMERAS:
                theirs = load_file(inputs.with_name(f"lerobot-{dtype}-{cameras}.safetensors"))["chunk"][0].numpy()
                ours = found[OURS][cameras][-1]["chunk"]
                medianed[OURS][cameras]["difference"] = float(abs(ours - theirs).max())
    return medianed


def _judged(figures: Mapping[str, Mapping[str, Mapping[int, Chunk]]], cameras: int) -> dict[str, float]:
    """This side's time over LeRobot's by kind of time, each side in its better type, and in each type."""
    ratios = {}
    for kind in ("best", "cpu"):
        of = {
            side: {dtype: sides[side][cameras][f"{kind}_ms"] for dtype, sides in figures.items()}
            for side in (OURS, THEIRS)
        }
        ratios[kind] = min(of[OURS].values()) / min(of[THEIRS].values())
        ratios |= {f"{kind} in {dtype}": ours / of[THEIRS][dtype] for dtype, ours in of[OURS].items()}
    return ratios


def _text(figure: Chunk) -> str:
    parts = ", ".join(f"{name} {value:.0f}" for name, value in figure["parts_ms"].items())
    times = ", ".join(f"{figure[f'{name}_ms']:.0f} ms {name}" for name in ("chunk", "best", "cpu"))
    differs = f"; actions differ by {figure['difference']:.2g}" if "difference" in figure else ""
    return f"{times}: {parts}{differs}"


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


def medians(chunks: Sequence[Chunk]) -> dict[str, Any]:
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
    sys.exit(main())
