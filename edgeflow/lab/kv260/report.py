"""The result of a co-simulation: Table I beside the paper's, the time of a token in each placement, sizes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeflow.kernels.awq import GROUPS
from edgeflow.lab.kv260 import constants
from edgeflow.lab.kv260.hybrid import HybridRun
from edgeflow.lab.kv260.network import PAPER_MODEL, PUBLISHED
from edgeflow.lab.kv260.placement import PLACEMENTS, PlacedOperation, TokenTime, token_time
from edgeflow.lab.kv260.sizes import (
    MIB,
    BoardMemory,
    WeightBytes,
    check_fits,
    memory_of,
    positions,
    second_head_bytes,
    sizes,
)
from edgeflow.lab.plain_attention import read_with_heads
from edgeflow.models.llama import LlamaConfig
from edgeflow_client.errors import ConfigError

ROWS = {
    "embedding": "Embedding copy, layer set-up",
    "qkv": "Q, K, V projections",
    "qkv_bias": "Q, K, V biases",
    "output": "Output projection, residual",
    "attention": "Attention (concatenation)",
    "gate_up": "Gate and up projections",
    "down": "Down projection, residual",
    "rope": "RoPE of queries and keys",
    "rms_norm": "RMSNorm",
    "silu": "SiLU and product",
}
"""The rows of Table I, in words."""
MACS = ("qkv", "gate_up", "down")
"""The rows whose percentages add up to 91.61 in the paper."""


@dataclass(frozen=True, slots=True)
class CosimModel:
    """A decoder and the group of its macros."""

    name: str
    config: LlamaConfig
    group: int
    checkpoint: Path | None
    """Its directory, None for a published configuration."""


def subject(model: str, group: int | None) -> CosimModel:
    """Find a network by name or path; its weights are not read.

    group: by default the checkpoint's, or the paper's. ConfigError if it is neither a checkpoint nor a known name;
    CheckpointError for a checkpoint that cannot be served, or does not fit the KV260.
    """
    about = _found(model, group)
    check_fits(about.name, about.config, about.group)
    return about


def _found(model: str, group: int | None) -> CosimModel:
    if group is not None and group not in GROUPS:
        raise ConfigError(f"group: must be one of {', '.join(map(str, GROUPS))}, got {group}")
    usual = int(constants.GROUP.value)
    if model in PUBLISHED:
        return CosimModel(model, PUBLISHED[model], group or usual, None)
    path = Path(model).expanduser()
    if not path.is_dir():
        raise ConfigError(f"model: {model} is neither a checkpoint directory nor one of {', '.join(PUBLISHED)}")
    published = read_with_heads(path, "the accelerator")
    stated = published.quantization.group if published.quantization else None
    if group is not None and stated is not None and group != stated:
        raise ConfigError(f"group: {model} is quantised in groups of {stated}, got {group}: leave --group out")
    return CosimModel(model, published.text, group or stated or usual, path)


@dataclass(frozen=True, slots=True)
class CosimReport:
    """The result of a co-simulation."""

    subject: CosimModel
    times: tuple[TokenTime, ...]
    sizes: WeightBytes
    second_head: int
    """Bytes of a head in macros."""
    run: HybridRun | None = None
    """None if no prompt was given."""

    @property
    def is_paper_network(self) -> bool:
        """True for the paper's network, the only one its figures are for."""
        return self.subject.config == PUBLISHED[PAPER_MODEL]

    @property
    def memory(self) -> BoardMemory:
        """The board's memory that the network takes."""
        return memory_of(self.subject.config, self.subject.group)

    @property
    def notes(self) -> list[str]:
        """Remarks for a reader of the paper."""
        second = f"{self.second_head / MIB:.1f} MiB"
        tied = self.subject.config.tie_word_embeddings
        return [
            *self._about_the_paper(),
            f"The head on the accelerator is a second copy of the tied matrix: {second} beside the embedding in FP16."
            if tied
            else f"The head on the accelerator takes {second}, instead of its copy in FP16.",
            f"Memory: {self.memory}; the KV260 has {constants.MEMORY.value:,.0f} MiB. Keys and values are of "
            f"{positions(self.subject.config):,} positions.",
            "Not counted: calls of the driver, cache maintenance, refresh and turnaround of the DRAM, cycles that fill "
            "a pipeline, attention over a long context.",
        ]

    def _about_the_paper(self) -> list[str]:
        table = {name: constant.value for name, constant in constants.TABLE_I.items()}
        total, output = sum(table.values()), table["output"]
        macs = sum(table[name] for name in MACS)
        stated = constants.PAPER_MAC_TOTAL.value
        left_out = (
            f"The paper's MAC operations in Table I, {100 * macs / total:.2f} % or {stated:,.0f} µs, leave out "
            f"the output projection ({output:.0f} µs per layer); "
            f"with it the share is {100 * (macs + output) / total:.2f} %."
        )
        if not self.is_paper_network:
            return [left_out, "Times of the A53s are Table I's, scaled by the sizes of this network."]
        bare, headed, *_ = self.times
        like, unlike = (
            1 - self.sizes.autoawq / self.sizes.fp16,
            1 - constants.PAPER_SIZE.value / constants.PAPER_BASELINE_SIZE.value,
        )
        return [
            left_out,
            f"The baseline of Table I, taken {bare.layers} times, is {bare.rate:.1f} tokens per second without a head "
            f"and {headed.rate:.1f} with one; the paper reports {constants.PAPER_BASELINE.value:.1f}.",
            f"The AutoAWQ file is {100 * like:.1f} % smaller than FP16; the paper's {100 * unlike:.1f} % divides "
            f"{constants.PAPER_SIZE.value} MiB by {constants.PAPER_BASELINE_SIZE.value:.0f} MB.",
        ]

    def as_dict(self) -> dict[str, Any]:
        """JSON values; microseconds, milliseconds and bytes are marked by their names."""
        return {
            "model": self.subject.name,
            "group": self.subject.group,
            "config": asdict(self.subject.config),
            "bytes": {**asdict(self.sizes), "second_head": self.second_head},
            "memory": {**asdict(self.memory), "total": self.memory.total, "positions": positions(self.subject.config)},
            "reduction": 1 - self.sizes.autoawq / self.sizes.fp16,
            "placements": [
                _placement(time, time.placement.paper if self.is_paper_network else None) for time in self.times
            ],
            "notes": self.notes,
            "constants": {name: asdict(constant) for name, constant in constants.ALL.items()},
            "run": None if self.run is None else {**asdict(self.run), "equal": self.run.equal},
        }


def cosimulate(subject: CosimModel, run: HybridRun | None = None) -> CosimReport:
    """All placements of a network; CheckpointError if macros cannot hold a linear."""
    config, group = subject.config, subject.group
    times = tuple(token_time(config, group, placement) for placement in PLACEMENTS)
    head = second_head_bytes(config, group)
    return CosimReport(subject, times, sizes(config, group), head, run)


def _placement(time: TokenTime, paper: float | None) -> dict[str, Any]:
    total = time.layer_microseconds
    return {
        "name": time.placement.name,
        "paper_tokens_per_s": paper,
        "tokens_per_s": time.rate,
        "tokens_per_s_without_overlap": time.rate_in_turn,
        "token_ms": time.milliseconds,
        "limits": time.shares(),
        "layer_us": total,
        "layers": time.layers,
        "head_us": time.head.microseconds if time.head else None,
        "parts": [_part(part, total) for part in time.layer],
    }


def _part(part: PlacedOperation, total: float) -> dict[str, Any]:
    microseconds = part.microseconds
    return {
        "name": part.name,
        "microseconds": microseconds,
        "in_turn": part.in_turn,
        "limits": dict(part.limits),
        "percent": 100 * microseconds / total,
    }
