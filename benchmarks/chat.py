"""Batch-1 decoding of a 494 M Qwen2.5-shaped model with random weights, side by side in one run.

Ours (one packed forward; float32, bfloat16, and 8-bit weights for decode rows) against `transformers` eager in float32
and bfloat16. Systems take turns; every round has a prompt of its own. Medians; ratios to transformers' better dtype.

    .venv/bin/python -m benchmarks.chat --json benchmarks/results/chat-cpu.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.progress import track
from rich.table import Table

from benchmarks.machine import machine_facts
from edgeflow.console import table_console
from edgeflow.engine.generate import StepRows, run_pass
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.layout import Span
from edgeflow.kernels.table import OperatorTable, built_in_table
from edgeflow.models.checkpoint import Weights
from edgeflow.models.decoder_config import decoder_config
from edgeflow.models.llama import LlamaDecoder

CPU = torch.device("cpu")
SHAPE = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
BAR = 2.5

Answer = Callable[[list[int], int], "Timed"]


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds to the first token, seconds a token after it, the tokens."""

    first_s: float
    token_s: float
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over rounds, milliseconds. ratio: decode, against transformers' better dtype, round by round."""

    system: str
    first_token_ms: float
    token_ms: float
    tokens_per_s: float
    ratio: float


def main() -> None:
    """Measure and print; exit code 1 when our best is below the bar."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    with tempfile.TemporaryDirectory() as folder:
        systems = _systems(Path(folder), arguments.prompt + arguments.tokens)
    generator = np.random.default_rng(0)
    rounds: list[dict[str, Timed]] = []
    for index in track(range(arguments.rounds + 1), description="rounds (the first is not counted)"):
        prompt = generator.integers(0, SHAPE["vocab_size"], arguments.prompt).tolist()
        outcome = {name: answer(prompt, arguments.tokens) for name, answer in systems.items()}
        if index:
            rounds.append(outcome)
    rows = _rows(rounds)
    _print(rows, rounds, arguments)
    best = max(row.ratio for row in rows if row.system.startswith("edgeflow"))
    print(f"decode, our best against transformers' better dtype: {best:.2f} times (bar {BAR})")
    if arguments.json:
        report = {
            **machine_facts(),
            "threads": arguments.threads,
            "prompt": arguments.prompt,
            "tokens": arguments.tokens,
            "rounds": arguments.rounds,
            "rows": [asdict(row) for row in rows],
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    raise SystemExit(0 if best >= BAR else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _systems(folder: Path, capacity: int) -> dict[str, Answer]:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(**SHAPE)
    theirs = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.02)
    theirs.save_pretrained(folder)
    text = decoder_config({"model_type": "qwen2", **SHAPE}, "qwen2")

    def ours(dtype: torch.dtype, table: OperatorTable) -> Answer:
        decoder = LlamaDecoder(text, Weights(folder, dtype, CPU), name="qwen2", table=table)
        return _ours(decoder, decoder.kv_slots(1, capacity))

    exact, eight = built_in_table(), built_in_table().allowing("int8")
    return {
        "edgeflow float32": ours(torch.float32, exact),
        "edgeflow bfloat16": ours(torch.bfloat16, exact),
        "edgeflow bfloat16, int8 rows": ours(torch.bfloat16, eight),
        "edgeflow float32, int8 rows": ours(torch.float32, eight),
        "transformers float32": _theirs(theirs),
        "transformers bfloat16": _theirs(Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()),
    }


def _ours(decoder: LlamaDecoder, kv: KVSlots) -> Answer:
    @torch.inference_mode()
    def answer(prompt: list[int], count: int) -> Timed:
        tokens: list[int] = []
        ids, place = prompt, 0
        times = [time.perf_counter()]
        for _ in range(count):
            rows = decoder.embed(torch.tensor(ids))
            positions = torch.arange(place, place + len(ids))[None]
            (logits,) = run_pass(decoder, kv, [StepRows(Span(0, place, len(ids)), rows, positions, True)])
            place += len(ids)
            assert logits is not None
            tokens.append(int(logits.argmax()))
            ids = tokens[-1:]
            times.append(time.perf_counter())
        return _timed(times, tokens)

    return answer


def _theirs(model: torch.nn.Module) -> Answer:
    @torch.inference_mode()
    def answer(prompt: list[int], count: int) -> Timed:
        tokens: list[int] = []
        ids, cache = torch.tensor([prompt]), None
        times = [time.perf_counter()]
        for _ in range(count):
            out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            tokens.append(int(out.logits[0, -1].argmax()))
            ids = torch.tensor([tokens[-1:]])
            times.append(time.perf_counter())
        return _timed(times, tokens)

    return answer


def _timed(times: list[float], tokens: list[int]) -> Timed:
    gaps = [later - earlier for earlier, later in itertools.pairwise(times[1:])]
    return Timed(times[1] - times[0], median(gaps), tokens)


def _rows(rounds: list[dict[str, Timed]]) -> list[Row]:
    def best(outcome: dict[str, Timed]) -> float:
        return min(timed.token_s for name, timed in outcome.items() if name.startswith("transformers"))

    rows = []
    for name in rounds[0]:
        token_s = median(outcome[name].token_s for outcome in rounds)
        first_s = median(outcome[name].first_s for outcome in rounds)
        ratio = median(best(outcome) / outcome[name].token_s for outcome in rounds)
        rows.append(Row(name, first_s * 1e3, token_s * 1e3, 1 / token_s, ratio))
    return rows


def _print(rows: list[Row], rounds: list[dict[str, Timed]], arguments: argparse.Namespace) -> None:
    title = f"494 M, random weights, {arguments.threads} threads: {arguments.prompt} tokens in, {arguments.tokens} out"
    table = Table("system", "first token ms", "ms a token", "tokens/s", "decode ratio", "tokens as theirs", title=title)
    for row in rows:
        dtype = "bfloat16" if "bfloat16" in row.system else "float32"
        same = [
            sum(a == b for a, b in zip(each[row.system].tokens, each[f"transformers {dtype}"].tokens, strict=True))
            for each in rounds
        ]
        table.add_row(
            row.system,
            f"{row.first_token_ms:.0f}",
            f"{row.token_ms:.1f}",
            f"{row.tokens_per_s:.1f}",
            f"{row.ratio:.2f}",
            f"{sum(same)} of {arguments.tokens * len(rounds)}",
        )
    table_console().print(table)


if __name__ == "__main__":
    main()
