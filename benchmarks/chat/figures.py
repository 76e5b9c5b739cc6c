"""Rounds of the systems, and the figures of the table from their times, each beside its target."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.progress import track
from rich.table import Table

from benchmarks.chat.systems import SHAPE, Answer, Timed
from benchmarks.command import keep, machine_facts, options
from edgeflow.kernels.timing import median_us
from edgeflow_client.loadtest.terminal import table_console

Round = Mapping[str, Timed]
COPIES = 9
HALVES = "edgeflow bfloat16"
"""edgeflow's system with weights in bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTimes:
    """A system's medians over rounds."""

    system: str
    first_token_ms: float
    token_ms: float
    tokens_per_s: float

    @property
    def cells(self) -> tuple[str, ...]:
        """The first columns of a table."""
        return self.system, f"{self.first_token_ms:.0f}", f"{self.token_ms:.1f}", f"{self.tokens_per_s:.1f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRow(ChatTimes):
    """The figures of one system."""

    ratio: float
    """Decode time of transformers' better dtype divided by this system's, round by round."""
    same: float
    """Share of tokens equal to those of transformers in float32."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure and its limits; None if the figure is only reported."""

    name: str
    value: float | None
    """None if it was not measured."""
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool | None:
        """None if the figure was not measured, or has no limit."""
        if self.value is None or (self.least is None and self.most is None):
            return None
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Name, value, limit and verdict, for a table."""
        limit = f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}" if self.most is not None else ""
        if self.value is None:
            return self.name, "not measured", limit, "not measured" if limit else ""
        return self.name, f"{self.value:.3g}", limit, ("met" if self.met else "MISSED") if limit else ""


def chat_options(description: str | None, rounds: int, openvino: str) -> argparse.ArgumentParser:
    """A parser with the options of a comparison. rounds: by default. openvino: packages that its interpreter needs."""
    parser = options(description)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--openvino", type=Path, help=f"an interpreter that has {openvino}")
    parser.add_argument("--llama-cpp", type=Path, help="an interpreter that has llama-cpp-python; needs --openvino too")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The checked options."""
    arguments = parser.parse_args()
    if arguments.llama_cpp and not arguments.openvino:
        parser.error("--llama-cpp needs --openvino, whose environment writes the GGUF file")
    return arguments


def show(
    head: Sequence[str], rows: Iterable[Sequence[str]], bars: Sequence[Bar], arguments: argparse.Namespace
) -> None:
    """Print the table of the systems and the table of the figures."""
    title = f"494 M, random weights, {arguments.threads} threads: {arguments.prompt} tokens in, {arguments.tokens} out"
    table, figures = Table(*head, title=title), Table("figure", "value", "bar", "")
    for cells in rows:
        table.add_row(*cells)
    for bar in bars:
        figures.add_row(*bar.row)
    console = table_console()
    console.print(table)
    console.print(figures)


def finish(arguments: argparse.Namespace, rows: Sequence[Any], bars: Sequence[Bar], **more: object) -> None:
    """Write the result file; end with exit code 1 if a bar is missed."""
    asked = {name: getattr(arguments, name) for name in ("threads", "prompt", "tokens", "rounds")}
    values = [asdict(bar) | {"met": bar.met} for bar in bars]  # null where a bar was not measured
    report = {**machine_facts(), **asked, "rows": [asdict(row) for row in rows], "bars": values, **more}
    keep(arguments.json, report)
    raise SystemExit(any(bar.met is False for bar in bars))


def rounds_of(systems: Mapping[str, Answer], count: int, prompt: int, tokens: int) -> Iterator[Round]:
    """Rounds in which every system answers the same random prompt; the first is not counted. prompt, tokens: lengths"""
    generator = np.random.default_rng(0)
    for index in track(range(count + 1), description="rounds (the first is not counted)"):
        ids = generator.integers(0, SHAPE["vocab_size"], prompt).tolist()
        outcome = {name: answer(ids, tokens) for name, answer in systems.items()}
        if index:
            yield outcome


def gaps(timed: Timed) -> list[float]:
    """Seconds between tokens."""
    return [later - earlier for earlier, later in itertools.pairwise(timed.at)]


def token_s(timed: Timed) -> float:
    return median(gaps(timed))


def times_of(rounds: Sequence[Round], name: str) -> dict[str, Any]:
    """The fields of `ChatTimes` for a system."""
    first_s, each_s = median(each[name].at[0] for each in rounds), median(token_s(each[name]) for each in rounds)
    return {"system": name, "first_token_ms": first_s * 1e3, "token_ms": each_s * 1e3, "tokens_per_s": 1 / each_s}


def system_rows(rounds: Sequence[Round]) -> list[SystemRow]:
    """One a system."""
    rows = []
    for name in rounds[0]:
        ratio = median(_fastest(each, "transformers") / token_s(each[name]) for each in rounds)
        same = np.mean([np.equal(each[name].tokens, each["transformers float32"].tokens) for each in rounds])
        rows.append(SystemRow(**times_of(rounds, name), ratio=ratio, same=float(same)))
    return rows


def peer_ratios(rounds: Sequence[Round], peers: Sequence[str]) -> list[Bar]:
    """Decode time of each peer in that of our 8-bit weights: the faster one is the bar. Not measured without peers."""
    ours = [_fastest(each, "edgeflow", "int8") for each in rounds]
    return peer_bars("8 bits", rounds, ours, peers)


def peer_bars(bits: str, rounds: Sequence[Round], ours: Sequence[float], peers: Sequence[str]) -> list[Bar]:
    """The faster peer's time relative to edgeflow's, which is the bar, and the slower peer's.

    ours: seconds per token in each round.
    """
    faster, slower = (
        median(pick(token_s(each[name]) for name in peers) / own for each, own in zip(rounds, ours, strict=True))
        if peers
        else None
        for pick in (min, max)
    )
    return [
        Bar(f"decode, {bits}: the faster peer's time / ours", faster, least=1.0),
        Bar("the slower peer's time / ours", slower),
    ]


def main_bars(rounds: Sequence[Round]) -> list[Bar]:
    """Decode and prefill against transformers; the bar of decoding is of like precision."""
    halves = median(token_s(each["transformers bfloat16"]) / token_s(each[HALVES]) for each in rounds)
    best = median(_fastest(each, "transformers") / _fastest(each, "edgeflow") for each in rounds)
    first = [
        each["transformers bfloat16"].at[0] / min(t.at[0] for name, t in each.items() if name.startswith("edgeflow"))
        for each in rounds
    ]
    return [
        Bar("decode, bfloat16: transformers' time / ours", halves, 2.5),
        Bar("decode: transformers' better dtype / our best, of 8 bits too", best),
        Bar("first token: transformers bfloat16 / our best", median(first), 1.3),
    ]


def jitter(runs: Sequence[Timed]) -> float:
    """p99 / p50 of the time between tokens, of all runs together."""
    every = [gap for run in runs for gap in gaps(run)]
    return float(np.percentile(every, 99) / np.percentile(every, 50))


def bytes_a_token(weight_bytes: float, kv_item_bytes: int, positions: int) -> float:
    """Bytes that one decode step must read: every matrix once, and the KV of all positions before it."""
    head_dim = SHAPE["hidden_size"] // SHAPE["num_attention_heads"]
    kv = 2 * SHAPE["num_hidden_layers"] * SHAPE["num_key_value_heads"] * head_dim * kv_item_bytes * positions
    return weight_bytes + kv


def parameters() -> int:
    """Weights of the matrices, the tied head among them; the embedding is looked up, not read."""
    hidden, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    width = hidden + 2 * SHAPE["num_key_value_heads"] * hidden // SHAPE["num_attention_heads"]
    layer = hidden * width + hidden * hidden + 3 * hidden * inner
    return SHAPE["num_hidden_layers"] * layer + SHAPE["vocab_size"] * hidden


def _fastest(outcome: Round, *words: str) -> float:
    return min(token_s(timed) for name, timed in outcome.items() if all(word in name for word in words))


def copy_bytes_per_s() -> float:
    """Bytes per second, read and written, of a block larger than any cache, with as many threads as torch has."""
    source = torch.empty(2**28, dtype=torch.uint8)
    target = torch.empty_like(source)
    taken_us = median_us({"copy": partial(target.copy_, source)}, source.device, COPIES)["copy"]
    return 2 * source.nbytes / (taken_us * 1e-6)
