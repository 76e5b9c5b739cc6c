"""In which numbers a chat model runs: dtype, weights of decode rows, keys and values; and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from edgeflow.config import ChatConfig
from edgeflow.engine.build import choose_dtype
from edgeflow.engine.generate import Prefill, run_pass
from edgeflow.engine.operators import model_shape
from edgeflow.engine.table import operator_table
from edgeflow.kernels.implementations import Hardware
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.model_cases import ModelShape, linear_cases
from edgeflow.kernels.table import OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.timing import median_us
from edgeflow.models.chat import ChatModel
from edgeflow.models.prompt import Prompt
from edgeflow.text.checkpoint_json import read_json

SAMPLES = 9
AUTO = {"cpu": "int8", "cuda": "fp8"}
ENOUGH = 1.25  # times as fast: from here on `auto` takes weights of that precision
HALVES = ("bfloat16", "float16")


def choose_chat_dtype(name: str, path: Path, device: torch.device) -> torch.dtype:
    """`auto` on a CPU: bfloat16 where the CPU multiplies it and the checkpoint is in 16 bits, else float32."""
    if name != "auto" or device.type != "cpu":
        return choose_dtype(name, device)
    values = read_json(path / "config.json")
    published = values.get("dtype") or values.get("torch_dtype")
    return torch.bfloat16 if published in HALVES and _multiplies_bfloat16() else torch.float32


@dataclass(frozen=True, slots=True)
class Weights:
    """What serves a model's operators. told: with which weights, and why, for a person."""

    table: OperatorTable
    told: str


def choose_weights(config: ChatConfig, path: Path, dtype: torch.dtype, device: torch.device) -> Weights:
    """Those named; `auto`: of another precision where a decode row's matrices are clearly faster so, here and now."""
    overlay = Path(config.operators) if config.operators else None
    chosen: str = config.weights
    told = f"{chosen} weights"
    if chosen == "auto":
        other = AUTO[device.type]
        gain = _gain(other, model_shape(str(path), config.prefill_chunk), dtype, device)
        chosen = other if gain >= ENOUGH else "float"
        told = f"{chosen} weights (auto: a row meets {other} ones {gain:.1f} times as fast)"
    return Weights(operator_table(overlay, chosen, device, dtype, section="chat."), told)


@torch.inference_mode()
def row_error(model: ChatModel, kv: KVSlots, probe: Prompt) -> float:
    """How far the logits of a row by itself are from those of the same row among others, in their spread; in slot 0."""
    whole, parts = Prefill(model, probe, 0), Prefill(model, probe, 0)
    (among,) = run_pass(model.decoder, kv, [whole.rows(len(probe), samples=True)])
    run_pass(model.decoder, kv, [parts.rows(len(probe) - 1, samples=False)])
    (alone,) = run_pass(model.decoder, kv, [parts.rows(1, samples=True)])
    if among is None or alone is None:
        raise ValueError("a prompt's last row has logits")
    return float((alone - among).float().abs().mean() / among.float().std())


def _gain(precision: str, shape: ModelShape, dtype: torch.dtype, device: torch.device) -> float:
    """How many times faster a layer's projections are for one row; random weights. 1 where it cannot be served."""
    hardware, tables = Hardware.of(device), [built_in_table(), built_in_table().allowing(precision)]
    exact_us = other_us = 0.0
    for case in linear_cases(shape, 1):
        stage, shape_sig = case.signed()
        key = OperatorKey(case.op_name, shape.family, layer_role=case.layer_role, stage=stage, shape_sig=shape_sig)
        problem = case.problem(device, dtype)
        made = [table.choose(key, hardware, dtype).load() for table in tables]
        calls = {name: problem.given_to(each) for name, each in zip(("exact", "other"), made, strict=True)}
        times = median_us(calls, device, SAMPLES)
        exact_us, other_us = exact_us + times["exact"], other_us + times["other"]
    return exact_us / other_us


def _multiplies_bfloat16() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
