"""The precision of a chat model: dtype, weights of decode rows, head; and what each choice costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgeflow.config.chat import ChatConfig
from edgeflow.engine.placement import check_head, choose_dtype, operator_table, quantised_line
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.dimensions import SIGNATURES
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.model_shape import ModelShape, Product
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.table.overlay import tune_options
from edgeflow.kernels.timing import last_level_cache, median_us, ring_size, rotating
from edgeflow.kernels.weights import FLOAT, FloatWeight
from edgeflow.models.chat import ChatModel
from edgeflow.models.network import TokenRows
from edgeflow.models.prompt import Prompt
from edgeflow.models.quantization import read_quantization, reject_conversion
from edgeflow.models.shape import checkpoint_shape
from edgeflow.text.checkpoint_json import read_json

SAMPLES = 9
PERIOD = 1 << 16  # random numbers of a weight that is only timed
AUTO = {"cpu": "int8", "cuda": FLOAT}
"""The weights that `auto` may take. FP8 changes logits by several percent, so it is asked for by name: a gain near the
least one would give other answers from one start to the next.
"""
ENOUGH = 1.25  # times as fast: the least gain for which `auto` takes 8-bit weights
HALVES = ("bfloat16", "float16")


def choose_chat_dtype(name: str, path: Path, device: torch.device) -> torch.dtype:
    """The dtype of a chat model; `auto` on a CPU: bfloat16 for 16-bit files if the CPU multiplies it, else float32."""
    if name != "auto" or device.type != "cpu":
        return choose_dtype(name, device)
    values = read_json(path / "config.json")
    published = values.get("dtype") or values.get("torch_dtype")
    return torch.bfloat16 if published in HALVES and _multiplies_bfloat16() else torch.float32


@dataclass(frozen=True, slots=True)
class ChosenWeights:
    """The weights that were chosen for a model."""

    table: OperatorTable
    """The operator table that serves them."""
    line: str
    """The line shown at the start: which weights, and why."""
    format: str = FLOAT
    """The format of the projections."""


def choose_weights(
    config: ChatConfig, path: Path, dtype: torch.dtype, device: torch.device, threads: int = 1
) -> ChosenWeights:
    """The configured weights; `auto` takes 8-bit ones if they make a decode row's matrices clearly faster here.

    threads: of the service, on a CPU. ConfigError where no operator here serves them.
    """
    chosen, line = _choose_format(config, path, dtype, device, threads)
    table = _table(config, chosen, dtype, device, threads)
    check_head(table, config.head, Hardware.of(device), dtype, section="chat.")
    line = line if config.head == FLOAT else f"{line}, head in {config.head}"
    return ChosenWeights(table, line, format=chosen)


def _choose_format(
    config: ChatConfig, path: Path, dtype: torch.dtype, device: torch.device, threads: int
) -> tuple[str, str]:
    """The format that float weights are converted to, and a line that says which weights serve, and why."""
    quantization = read_quantization(path)
    if quantization is not None:
        reject_conversion(path, config.weights, "chat.weights")
        return FLOAT, quantised_line(_table(config, FLOAT, dtype, device, threads), quantization, device, dtype)
    if config.weights != "auto":
        return config.weights, f"{config.weights} weights"
    other = AUTO[device.type]
    if other == FLOAT:
        return FLOAT, f"{FLOAT} weights"
    gain = _gain(other, checkpoint_shape(path, config.prefill_chunk), dtype, device)
    chosen = other if gain >= ENOUGH else FLOAT
    return chosen, f"{chosen} weights (auto: a row meets {other} ones {gain:.1f} times as fast)"


def _table(config: ChatConfig, weights: str, dtype: torch.dtype, device: torch.device, threads: int) -> OperatorTable:
    overlay = Path(config.operators) if config.operators else None
    tuned_for = tune_options(config.model, config.head)
    return operator_table(overlay, weights, device, dtype, section="chat.", tuned_for=tuned_for, threads=threads)


@torch.inference_mode()
def row_error(model: ChatModel, kv: KVSlots, probe: Prompt) -> float:
    """Mean error of the logits of a row by itself, against the same row within a chunk, in standard deviations."""
    among = _last_logits(model, kv, probe, 0)
    _last_logits(model, kv, probe.head(len(probe) - 1), 0)
    alone = _last_logits(model, kv, probe, len(probe) - 1)
    return float((alone - among).float().abs().mean() / among.float().std())


def _last_logits(model: ChatModel, kv: KVSlots, prompt: Prompt, start: int) -> Tensor:
    """Logits [V] of a prompt's last row; its rows from `start` on enter slot 0."""
    span, rows = Span(0, start, len(prompt) - start), model.prompt_rows(prompt, start)
    layout = PackedLayout.of([span], rows.device, prompt.positions[:, start:])
    return model.network.next_logits(TokenRows(prompts=[rows]), layout, kv)[0]


def _gain(weights: str, shape: ModelShape, dtype: torch.dtype, device: torch.device) -> float:
    """The speed-up of a layer's projections for one row, with random weights; 1 if such weights cannot be served."""
    products = [each for each in shape.every_product if each.role != "head"]
    count = ring_size(sum(each.outputs * each.inputs for each in products), last_level_cache(device))
    layers = [[_random(each, dtype, device) for each in products] for _ in range(count)]
    tables = {"exact": built_in_table(), "other": built_in_table().converting(weights)}
    calls = {}
    for name, table in tables.items():
        makes = [_chosen(table, each, shape.family, dtype, device) for each in products]
        planned = [
            [partial(make(weight, None), row) for make, (weight, row) in zip(makes, layer, strict=True)]
            for layer in layers
        ]
        calls[name] = rotating([partial(_run_all, layer) for layer in planned])
    times = median_us(calls, device, SAMPLES)
    return times["exact"] / times["other"]


def _random(product: Product, dtype: torch.dtype, device: torch.device) -> tuple[FloatWeight, Tensor]:
    """A weight [outputs, inputs] whose numbers repeat, since drawing them all takes longer, and a row [1, inputs]."""
    numbers = torch.randn(PERIOD).to(device, dtype)
    size = product.outputs * product.inputs
    weight = numbers.repeat(-(-size // PERIOD))[:size].view(product.outputs, product.inputs)
    return FloatWeight(weight), weight[:1].clone()


def _chosen(
    table: OperatorTable, product: Product, family: str, dtype: torch.dtype, device: torch.device
) -> Callable[..., Any]:
    """The implementation that serves a projection of a decode row."""
    weight = FloatWeight(torch.empty(product.outputs, product.inputs, device="meta"))
    _, shape_sig = SIGNATURES["linear"](weight, None, 1)
    key = OperatorKey(op_name="linear", model_name=family, layer_role=product.role, stage="decode", shape_sig=shape_sig)
    return table.choose(key, Hardware.of(device), dtype).load()


def _run_all(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _multiplies_bfloat16() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
