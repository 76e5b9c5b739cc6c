"""Batch-1 chat of a 494 M Qwen2.5-shaped model in 4 bits, heads in 8 bits, side by side in one run.

Here edgeflow (4 bits in groups of 64, the AWQ layout; 8 bits; bfloat16 for the first token) against llama.cpp (Q4_0,
embedding and head in Q8_0) and OpenVINO (4 bits with zero points in groups of 64, embedding and head in 8). Every
system is a process of the same machine. Systems take turns, and every round has its own prompt. Times are medians over
rounds, ratios are of times within a round.

    .venv/bin/python -m benchmarks.chat_int4 --openvino PYTHON --llama-cpp PYTHON --json FILE

PYTHON: of an environment with openvino-genai, nncf, gguf and safetensors, or with llama-cpp-python.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from benchmarks.chat import figures
from benchmarks.chat.figures import Bar, ChatTimes, Round
from benchmarks.chat.systems import PEERS, SHAPE, Peer
from benchmarks.chat_int4.checkpoints import write_all

OURS = Path(__file__).parent / "ours.py"
INT4, INT8, HALVES = "edgeflow, 4 bits", "edgeflow, 8 bits", "edgeflow, bfloat16"
LLAMA, OPENVINO = "llama.cpp, Q4_0", "OpenVINO, 4 bits"
GROUP = 64
LEAST_GAIN = 1.25
"""The least decode rate in 4 bits, relative to 8 bits."""
MOST_FIRST_TOKEN = 1.15
"""The most time to edgeflow's first token in 4 bits, relative to bfloat16."""

HEAD = SHAPE["vocab_size"] * SHAPE["hidden_size"]


@dataclass(frozen=True, slots=True)
class Bits:
    """Bits per weight that a decode step reads, scales and zero points included."""

    projections: float
    head: float

    @property
    def token_bytes(self) -> float:
        """Bytes of the weights that a token reads."""
        return ((figures.parameters() - HEAD) * self.projections + HEAD * self.head) / 8


BITS = {
    INT4: Bits(4 + (16 + 8) / GROUP, 8 + 32 / SHAPE["hidden_size"]),
    INT8: Bits(8, 8),
    HALVES: Bits(16, 16),
    LLAMA: Bits(4 + 16 / 32, 8 + 16 / 32),
    OPENVINO: Bits(4 + (16 + 4) / GROUP, 8 + (16 + 8) / SHAPE["hidden_size"]),
}
"""Bits besides the weights: edgeflow's 4-bit format has 16 per scale and 8 per zero point, OpenVINO's 16 and 4,
llama.cpp's 16 per scale of 32 weights.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4Row(ChatTimes):
    """The figures of one system."""

    token_mb: float
    gb_per_s: float
    peak_mb: float
    """The most memory of its process."""


def system_rows(rounds: Sequence[Round], bits: Mapping[str, Bits], peaks: Mapping[str, int]) -> list[Int4Row]:
    """One row per system."""
    rows = []
    for name in rounds[0]:
        times, token_mb = figures.times_of(rounds, name), bits[name].token_bytes / 1e6
        rate = token_mb / times["token_ms"]
        rows.append(Int4Row(**times, token_mb=token_mb, gb_per_s=rate, peak_mb=peaks[name] / 1e6))
    return rows


def bars(rounds: Sequence[Round], int4: str, int8: str, halves: str, peers: Sequence[str]) -> list[Bar]:
    """Targets of our 4 bits against our 8 bits, our bfloat16 and the peers; ratios are medians of ratios in a round.

    Without peers their figures are there, as not measured.
    """
    gain = median(figures.token_s(each[int8]) / figures.token_s(each[int4]) for each in rounds)
    first = median(each[int4].at[0] / each[halves].at[0] for each in rounds)
    found = [
        Bar("decode: our 8 bits' time / our 4 bits'", gain, least=LEAST_GAIN),
        Bar("first token: our 4 bits' time / our bfloat16's", first, most=MOST_FIRST_TOKEN),
    ]
    return found + figures.peer_bars("4 bits", rounds, [figures.token_s(each[int4]) for each in rounds], peers)


def main() -> None:
    """Measure and print; exit code 1 when a target is missed. The bars of peers that are not given are not measured."""
    parser = figures.chat_options(__doc__, 7, "openvino-genai, nncf, gguf and safetensors")
    parser.add_argument("--checkpoints", type=Path, help="keep the checkpoints here, and use those that are there")
    arguments = figures.parsed(parser)
    torch.set_num_threads(arguments.threads)
    with contextlib.ExitStack() as stack:
        folder = arguments.checkpoints or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        systems = _systems(folder, arguments)
        for system in systems.values():
            stack.callback(system.close)
        rounds = list(figures.rounds_of(systems, arguments.rounds, arguments.prompt, arguments.tokens))
        peaks = {name: system.peak_bytes() for name, system in systems.items()}
    rows = system_rows(rounds, BITS, peaks)
    found = bars(rounds, INT4, INT8, HALVES, [name for name in systems if name in (LLAMA, OPENVINO)])
    copied = figures.copy_bytes_per_s()
    found.append(Bar("GB/s that a copy reads and writes", copied / 1e9))
    found += [Bar(f"ms a token that this allows, {name}", 1e3 * BITS[name].token_bytes / copied) for name in systems]
    head = ("system", "first token ms", "ms per token", "tokens/s", "MB per token", "GB/s", "peak MB")
    cells = ((*row.cells, f"{row.token_mb:.0f}", f"{row.gb_per_s:.1f}", f"{row.peak_mb:.0f}") for row in rows)
    figures.show(head, cells, found, arguments)
    figures.finish(arguments, rows, found)


def _systems(folder: Path, arguments: argparse.Namespace) -> dict[str, Peer]:
    made = write_all(folder, GROUP, arguments.openvino)
    here, threads, capacity = Path(sys.executable), arguments.threads, str(arguments.prompt + arguments.tokens)
    systems = {
        INT4: Peer(here, OURS, made.awq, threads, "float", "int8", capacity),
        INT8: Peer(here, OURS, made.halves, threads, "int8", "float", capacity),
        HALVES: Peer(here, OURS, made.halves, threads, "float", "float", capacity),
    }
    if arguments.openvino and made.f16:
        systems[OPENVINO] = Peer(arguments.openvino, PEERS / "openvino_peer.py", made.f16, threads, str(GROUP))
    if arguments.llama_cpp and made.q4_0:
        systems[LLAMA] = Peer(arguments.llama_cpp, PEERS / "llama_cpp_peer.py", made.q4_0, threads)
    return systems


if __name__ == "__main__":
    main()
