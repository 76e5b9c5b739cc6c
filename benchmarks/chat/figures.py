"""Computes the figures of the table from times, each beside its target."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.chat.systems import SHAPE, Timed

Round = Mapping[str, Timed]


@dataclass(frozen=True, slots=True)
class SystemRow:
    """Medians over rounds, milliseconds. ratio: decode time of transformers' better dtype in that of this system, round
    by round. same: tokens that equal those of transformers in float32."""

    system: str
    first_token_ms: float
    token_ms: float
    tokens_per_s: float
    ratio: float
    same: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure with what it must be; None where only the figure is wanted. value: None where it was not measured."""

    name: str
    value: float | None
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool | None:
        """None where the figure was not measured."""
        if self.value is None:
            return None
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Name, value, limit and verdict, for a table."""
        limit = f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}" if self.most is not None else ""
        if self.value is None:
            return self.name, "not measured", limit, "not measured" if limit else ""
        return self.name, f"{self.value:.3g}", limit, ("met" if self.met else "MISSED") if limit else ""


def gaps(timed: Timed) -> list[float]:
    """Seconds between tokens."""
    return [later - earlier for earlier, later in itertools.pairwise(timed.at)]


def token_s(timed: Timed) -> float:
    return median(gaps(timed))


def system_rows(rounds: Sequence[Round]) -> list[SystemRow]:
    """One a system."""
    rows = []
    for name in rounds[0]:
        times = [token_s(each[name]) for each in rounds]
        first_s = median(each[name].at[0] for each in rounds)
        ratio = median(_fastest(each, "transformers") / token_s(each[name]) for each in rounds)
        same = np.mean([np.equal(each[name].tokens, each["transformers float32"].tokens) for each in rounds])
        rows.append(SystemRow(name, first_s * 1e3, median(times) * 1e3, 1 / median(times), ratio, float(same)))
    return rows


def peer_ratios(rounds: Sequence[Round], peers: Sequence[str]) -> list[Bar]:
    """Decode time of the slower and the faster peer in that of our 8-bit weights; not measured without peers."""
    names = "decode, 8 bits: the slower peer's time / ours", "the faster peer's time / ours"
    if not peers:
        return [Bar(names[0], None, 1.0), Bar(names[1], None)]
    times = [[token_s(each[name]) for name in peers] for each in rounds]
    ours = [_fastest(each, "edgeflow", "int8") for each in rounds]
    slower, faster = (
        median(pick(theirs) / own for theirs, own in zip(times, ours, strict=True)) for pick in (max, min)
    )
    return [Bar(names[0], slower, 1.0), Bar(names[1], faster)]


def main_bars(rounds: Sequence[Round]) -> list[Bar]:
    """Decode and prefill against transformers."""
    decode = median(_fastest(each, "transformers") / _fastest(each, "edgeflow") for each in rounds)
    first = [
        each["transformers bfloat16"].at[0] / min(t.at[0] for name, t in each.items() if name.startswith("edgeflow"))
        for each in rounds
    ]
    return [
        Bar("decode: transformers' better dtype / our best", decode, 2.5),
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
