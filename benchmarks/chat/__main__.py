"""Batch-1 chat of a 494 M Qwen2.5-shaped model with random weights, side by side in one run.

Here edgeflow (one packed forward; float32, bfloat16, and 8-bit weights) against `transformers` eager in float32 and
bfloat16, and, where an interpreter with them is named, OpenVINO and llama.cpp with 8-bit weights (GGUF Q8_0). Systems
take turns, and every round has its own prompt. Times are medians over rounds, ratios are of times within a round.

    .venv/bin/python -m benchmarks.chat --openvino PYTHON --llama-cpp PYTHON --json FILE

PYTHON: of an environment with openvino-genai, gguf and safetensors, or with llama-cpp-python.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.chat import figures
from benchmarks.chat.figures import Bar, Round
from benchmarks.chat.systems import PEERS, SHAPE, Answer, Ours, Peer, transformers_eager, write_checkpoint, write_gguf

JITTER_TOKENS, JITTER_RUNS = 256, 3
PREFIX_SHARE = 480 / 512
PEER_NAMES = {"OpenVINO, 8 bits": "openvino_peer", "llama.cpp, Q8_0": "llama_cpp_peer"}


def main() -> None:
    """Measure and print; exit code 1 if a bar is missed."""
    arguments = figures.parsed(figures.chat_options(__doc__, 5, "openvino-genai, gguf and safetensors"))
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        systems = _systems(Path(folder), arguments, stack)
        rounds = list(figures.rounds_of(systems, arguments.rounds, arguments.prompt, arguments.tokens))
        best = min((name for name in systems if name.startswith("edgeflow")), key=lambda name: _token_ms(rounds, name))
        ours = systems[best]
        assert isinstance(ours, Ours)
        bars = figures.main_bars(rounds) + figures.peer_ratios(rounds, [name for name in systems if name in PEER_NAMES])
        bars += _alone(ours, best, _token_ms(rounds, best), arguments)
        quick = min(
            (name for name in systems if name.startswith("edgeflow")),
            key=lambda name: median(each[name].at[0] for each in rounds),
        )
        spent = _prefill_shares(systems[quick], arguments.prompt)
    rows = figures.system_rows(rounds)
    head = ("system", "first token ms", "ms a token", "tokens/s", "decode ratio", "same tokens")
    figures.show(head, ((*row.cells, f"{row.ratio:.2f}", f"{row.same:.0%}") for row in rows), bars, arguments)
    print(f"first token of {quick}: " + ", ".join(f"{what} {share:.0%}" for what, share in spent.items()))
    figures.finish(arguments, rows, bars, first_token=spent)


def _systems(folder: Path, arguments: argparse.Namespace, stack: contextlib.ExitStack) -> dict[str, Answer]:
    from transformers import Qwen2ForCausalLM

    theirs = write_checkpoint(folder)
    capacity = arguments.prompt + max(arguments.tokens, JITTER_TOKENS)
    systems: dict[str, Answer] = {
        f"edgeflow {name}": Ours(folder, dtype, int8="int8" in name, capacity=capacity)
        for name, dtype in (
            ("float32", torch.float32),
            ("bfloat16", torch.bfloat16),
            ("bfloat16, int8 weights", torch.bfloat16),
            ("float32, int8 weights", torch.float32),
        )
    }
    systems["transformers float32"] = transformers_eager(theirs)
    halves = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    systems["transformers bfloat16"] = transformers_eager(halves)
    pythons = dict(zip(PEER_NAMES, (arguments.openvino, arguments.llama_cpp), strict=True))
    if arguments.openvino:
        write_gguf(arguments.openvino, folder, folder / "model.gguf")
    for name, python in pythons.items():
        if python:
            peer = Peer(python, PEERS / f"{PEER_NAMES[name]}.py", folder / "model.gguf", arguments.threads)
            stack.callback(peer.close)
            systems[name] = peer
    return systems


def _alone(ours: Ours, name: str, token_ms: float, arguments: argparse.Namespace) -> list[Bar]:
    """edgeflow's fastest system by itself: a fixed prefix, the jitter of a long answer, bytes relative to what the
    machine copies.
    """
    generator = np.random.default_rng(1)

    def prompt() -> list[int]:
        drawn: list[int] = generator.integers(0, SHAPE["vocab_size"], arguments.prompt).tolist()
        return drawn

    shared = round(arguments.prompt * PREFIX_SHARE)
    ratios = []
    for _ in range(arguments.rounds):
        whole = prompt()
        ours.keep_prefix(whole[:shared])
        without, with_prefix = ours(whole, 1), ours.after_prefix(shared, whole, 1)
        ratios.append(with_prefix.at[0] / without.at[0])
    runs = [ours(prompt(), JITTER_TOKENS) for _ in range(JITTER_RUNS)]
    item = 1 if "int8" in name else 2 if "bfloat16" in name else 4
    read = figures.bytes_a_token(
        figures.parameters() * item, ours.kv.data.element_size(), arguments.prompt + arguments.tokens // 2
    )
    copied = figures.copy_bytes_per_s()
    return [
        Bar(f"first token with {shared} of {arguments.prompt} in a fixed prefix / without", median(ratios), most=0.15),
        Bar(f"time between tokens, p99 / p50 of {JITTER_RUNS} x {JITTER_TOKENS}", figures.jitter(runs), most=1.5),
        Bar(f"MB a token must read ({name})", read / 1e6),
        Bar(f"ms a token that a copy's bandwidth allows; measured: {token_ms:.1f}", 1e3 * read / copied),
        Bar("of the bandwidth that a copy reaches", read / (token_ms * 1e-3) / copied),
    ]


def _prefill_shares(system: Answer, prompt: int) -> dict[str, float]:
    """The time to the first token by operator, as the profiler reports it."""
    from torch.profiler import ProfilerActivity, profile

    ids = np.random.default_rng(2).integers(0, SHAPE["vocab_size"], prompt).tolist()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        system(ids, 1)
    spent = {"matrix products": 0.0, "attention": 0.0, "all else": 0.0}
    for event in recorded.key_averages():
        products = any(word in event.key for word in ("linear", "addmm", "::mm"))
        what = "matrix products" if products else "attention" if "attention" in event.key else "all else"
        spent[what] += event.self_cpu_time_total
    return {what: time / sum(spent.values()) for what, time in spent.items()}


def _token_ms(rounds: list[Round], name: str) -> float:
    return next(row.token_ms for row in figures.system_rows(rounds) if row.system == name)


if __name__ == "__main__":
    main()
