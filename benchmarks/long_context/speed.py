"""First token, time per token and bytes of a slot, with full attention and with folded segments, side by side.

Random weights in the shape of Qwen2.5-0.5B (494 M). Chunks of the prompt are timed one by one. Those of full attention
give the rates of this machine: a least-squares line over the positions before a chunk, whose constant is the time of
its products and whose slope is that of attention. `floor` is what these rates allow the folded prompt, which has
the same products, those of its gate, and attention over fewer keys.

    .venv/bin/python -m benchmarks.long_context.speed --json FILE
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter

import torch
from rich.progress import track
from rich.table import Table

from benchmarks.command import keep, machine_facts, options
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation
from edgeflow.engine.chat.memory import SlotSize, folding_of, memory_format
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.kernels.kv.formats import DENSE
from edgeflow.lab.gpu.subjects.random_chat import CHAT_SIZES, random_chat, random_request
from edgeflow.lab.shared_passes import run_pass
from edgeflow.lab.training.gate.trainer import initial_gate
from edgeflow.models.chat import ChatModel
from edgeflow.models.memory_gate import GateRules, MemoryGate
from edgeflow_client.loadtest.terminal import table_console

CPU = torch.device("cpu")
TOKENS = 9
FULL, FOLDED = "full attention", "folded"


@dataclass(frozen=True, slots=True)
class PromptChunkTime:
    """A timed pass of a prompt."""

    rows: int
    keys: float
    """Number of keys that its rows see, on average."""
    gated: bool
    """True if its rows read the memory."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTimes:
    """The times of a prompt."""

    system: str
    length: int
    first_token_s: float
    token_ms: float
    """Median over the tokens after the first."""
    slot_mib: float
    floor_s: float | None = None
    """Floor of the first token's time, if it was derived."""


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Seconds of a row's products, and of a row and a key that it sees."""

    row_s: float
    key_s: float
    gate: float
    """Work of a gate, as a share of a row's other work."""

    @classmethod
    def of(cls, chunks: Sequence[PromptChunkTime], gate: float) -> RowCosts:
        """A least-squares line through the times per row of chunks by the keys that they see."""
        keys = torch.tensor([[1.0, each.keys] for each in chunks], dtype=torch.float64)
        times = torch.tensor([[each.seconds / each.rows] for each in chunks], dtype=torch.float64)
        row_s, key_s = torch.linalg.lstsq(keys, times).solution[:, 0].tolist()
        return cls(row_s, key_s, gate)

    def floor_s(self, chunks: Sequence[PromptChunkTime]) -> float:
        """The least time of these chunks."""
        return sum(each.rows * (self.row_s * (1 + self.gate * each.gated) + self.key_s * each.keys) for each in chunks)


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    config = CHAT_SIZES[arguments.size]
    model = random_chat(config, CPU, getattr(torch, arguments.dtype))
    rules = GateRules(sink=arguments.sink, window=arguments.window, segment=arguments.segment)
    gate = initial_gate(config, rules, 0)
    found: list[PromptTimes] = []
    for length in track(arguments.lengths, "prompts"):
        found += _both(model, _in(gate, model), length, arguments.chunk)
    _show(found)
    report = {**machine_facts(), "threads": arguments.threads, "options": _options(arguments)}
    keep(arguments.json, {**report, "measured": [asdict(each) for each in found]})


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--size", choices=CHAT_SIZES, default="qwen2.5-0.5b")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192, 16384])
    parser.add_argument("--chunk", type=int, default=512, help="rows of a pass")
    parser.add_argument("--sink", type=int, default=300)
    parser.add_argument("--window", type=int, default=200)
    parser.add_argument("--segment", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def _options(arguments: argparse.Namespace) -> dict[str, object]:
    return {name: value for name, value in vars(arguments).items() if name != "json"}


def _in(gate: MemoryGate, model: ChatModel) -> MemoryGate:
    """The gate in the dtype of the model."""
    layers = tuple(
        type(each)(**{name: tensor.to(model.decoder.dtype) for name, tensor in each.tensors().items()})
        for each in gate.layers
    )
    return MemoryGate(rules=gate.rules, layers=layers, mlp_hidden=gate.mlp_hidden)


def _both(model: ChatModel, gate: MemoryGate, length: int, chunk: int) -> Iterator[PromptTimes]:
    """One prompt, with full attention and folded."""
    positions = length + TOKENS
    full = ChatEngine(model, model.decoder.kv_slots(1, positions, DENSE))
    chunks, measured = _measure(FULL, full, length, chunk)
    rates = RowCosts.of(chunks, _gate_share(model, gate))
    yield measured
    del full
    size = SlotSize(positions=gate.rules.threshold, memory_bytes=0, length=positions)
    kv = model.decoder.kv_slots(1, size.positions, memory_format(gate, positions))
    folded, measured = _measure(FOLDED, ChatEngine(model, kv, folding=folding_of(gate.rules)), length, chunk)
    floor_s = rates.floor_s(folded)
    yield PromptTimes(**{**asdict(measured), "floor_s": floor_s})


def _gate_share(model: ChatModel, gate: MemoryGate) -> float:
    """Multiplications of the read and the gate per row, per one of the layers' products."""
    config = model.config
    width, heads = config.head_dim, config.num_attention_heads
    read = heads * (width * (width + 1) + 2 * width * gate.mlp_hidden)
    layer = config.hidden_size * (2 * config.q_width + 2 * config.kv_width + 3 * config.intermediate_size)
    return read / layer


def _measure(system: str, engine: ChatEngine, length: int, chunk: int) -> tuple[list[PromptChunkTime], PromptTimes]:
    request = random_request(engine, length, SamplingParams(max_tokens=TOKENS))
    chunks: list[PromptChunkTime] = []
    while not request.tokens:
        chunks.append(_timed(engine, request, chunk))
    tokens: list[float] = []
    while request.finish is None:
        tokens.append(_timed(engine, request, chunk).seconds)
    first = sum(each.seconds for each in chunks)
    slot_mib = engine.kv.nbytes / engine.kv.slots / 2**20
    token_ms = 1e3 * median(tokens)
    return chunks, PromptTimes(system=system, length=length, first_token_s=first, token_ms=token_ms, slot_mib=slot_mib)


def _timed(engine: ChatEngine, request: Generation, chunk: int) -> PromptChunkTime:
    before = request.plan.place
    started = perf_counter()
    run_pass(engine, [request], chunk)
    seconds = perf_counter() - started
    rows, folded = request.plan.place - before, request.plan.route.folded
    keys = before - engine.placement.compressed(folded) + (rows + 1) / 2
    return PromptChunkTime(rows, keys, folded > 0, seconds)


def _show(found: Sequence[PromptTimes]) -> None:
    table = Table("prompt", "", "first token, s", "/ full", "/ floor", "per token, ms", "slot, MiB", "/ full")
    for full, folded in zip(found[::2], found[1::2], strict=True):
        for each in (full, folded):
            floor = f"{each.first_token_s / each.floor_s:.2f}" if each.floor_s else ""
            table.add_row(
                str(each.length),
                each.system,
                f"{each.first_token_s:.1f}",
                f"{each.first_token_s / full.first_token_s:.2f}",
                floor,
                f"{each.token_ms:.0f}",
                f"{each.slot_mib:.1f}",
                f"{each.slot_mib / full.slot_mib:.3f}",
            )
    table_console().print(table)


if __name__ == "__main__":
    main()
