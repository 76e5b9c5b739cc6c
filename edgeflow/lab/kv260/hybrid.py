"""Hybrid execution: the linears of the layers on the accelerator's model, everything else on the CPU.

The one decoder runs it, with another operator table: weights of 4 bits as macros, sums to the last bit, biases on the
CPU. No other table has these implementations.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.awq import AWQ, AwqWeight
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.table.dimensions import STAGES
from edgeflow.kernels.table.implementations import REFERENCE, Implementation
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, TableEntry, built_in_table
from edgeflow.lab.kv260 import mac
from edgeflow.lab.kv260.macro import GemmWords, pack
from edgeflow.lab.kv260.macro_file import macro_weights, open_macro, stem_of
from edgeflow.lab.plain_attention import read_with_heads
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.llama import LlamaDecoder
from edgeflow.text.chat_template import ChatTemplate
from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import CheckpointError, ConfigError

ACCELERATED = "kv260"
EXACT = "exact"
BACKENDS = (ACCELERATED, REFERENCE, EXACT)
"""Backends of linears in 4 bits: the accelerator, weights rounded to float16 as AutoAWQ dequantises, and exact ones."""
CPU = torch.device("cpu")


class AcceleratedProduct:
    """The accelerator's sums; the processing system adds the bias."""

    def __init__(self, weight: AwqWeight, bias: Tensor | None) -> None:
        gemm = GemmWords(*(part.numpy() for part in weight.gemm()))
        self._weight = mac.unpack_unit(pack(gemm))
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        sums = torch.from_numpy(mac.sums(self._weight, np.ascontiguousarray(x.float().numpy())))
        return (sums if self._bias is None else sums + self._bias).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes


class ExactProduct:
    """A product with the weight in float32, not rounded to float16: the accelerator's computation in another order."""

    def __init__(self, weight: AwqWeight, bias: Tensor | None) -> None:
        self._weight = weight.exact()
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x.float(), self._weight, self._bias).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes


def hybrid_table(backend: str = ACCELERATED) -> OperatorTable:
    """A table in which one of BACKENDS serves every linear in 4 bits on a CPU. Everything else is selected as usual."""
    own = (_implementation(ACCELERATED, AcceleratedProduct), _implementation(EXACT, ExactProduct))
    entries = (
        TableEntry(
            OperatorKey(op_name="linear", hw_profile="cpu", stage=stage, weight=AWQ), backend, origin="co-simulation"
        )
        for stage in STAGES
    )
    return built_in_table(*own).overlaid(*entries)


def _implementation(impl_id: str, function: type) -> Implementation:
    return Implementation(
        op_name="linear", impl_id=impl_id, function=function, devices=frozenset({"cpu"}), weight=AWQ, replayable=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridRun:
    """Greedy tokens of a prompt, from the hybrid run and from the W4A16 reference in float32."""

    prompt: str
    rows: int
    tokens: list[int]
    reference: list[int]
    text: str
    ms_per_token: float
    """Milliseconds per token of this simulation."""

    @property
    def equal(self) -> bool:
        return self.tokens == self.reference


def load_hybrid(checkpoint: Path, macros: Path | None = None, backend: str = ACCELERATED) -> ChatModel:
    """A chat model in float32 whose linears in 4 bits are served by one of BACKENDS.

    macros: the directory of a macro file with the weights; by default they are the checkpoint's. CheckpointError if it
    belongs to another model, or if the checkpoint is not quantised.
    """
    table = hybrid_table(backend)
    published = read_with_heads(checkpoint, "the accelerator")
    if macros is None:
        if published.quantization is None:
            raise CheckpointError(f"{checkpoint} is not quantised: run `edgeflow quantize` first")
        return load_chat_model(checkpoint, torch.float32, CPU, table=table)
    if published.vision is not None:
        raise CheckpointError(
            f"{checkpoint}: models with a vision tower are not run from macro files: leave --macros out"
        )
    file = open_macro(macros)
    weights = macro_weights(file, published.text, torch.float32)
    decoder = LlamaDecoder(published.text, weights, stem=stem_of(file), name=published.family, table=table)
    return ChatModel(
        name=published.family,
        network=decoder,
        tokenizer=TextTokenizer(checkpoint, published.text.vocab_size),
        template=ChatTemplate.load(checkpoint),
        generation=published.generation,
        vision=None,
        device=CPU,
    )


@torch.inference_mode()
def greedy(decoder: LlamaDecoder, ids: list[int], count: int) -> list[int]:
    """The `count` most likely tokens after a prompt, one after another."""
    capacity = len(ids) + count
    if capacity > decoder.config.max_position_embeddings:
        limit = decoder.config.max_position_embeddings
        raise ConfigError(
            f"tokens: the model has {limit} positions, {len(ids)} of the prompt and {count} asked for: lower "
            "--tokens or shorten the prompt"
        )
    kv, rows, start = decoder.kv_slots(1, capacity), ids, 0
    tokens: list[int] = []
    while len(tokens) < count:
        layout = PackedLayout.of([Span(0, start, len(rows))], CPU)
        hidden = decoder.forward_sampled(decoder.embed(torch.tensor(rows)), layout, kv)
        start += len(rows)
        stage = "decode" if len(rows) == 1 else "prefill"
        rows = [int(decoder.logits(hidden, stage)[0].argmax())]
        tokens += rows
    return tokens


def compare_run(checkpoint: Path, macros: Path | None, prompt: str, count: int) -> HybridRun:
    """Run a prompt on the hybrid and on the reference. A model with a chat template gets it as a chat message."""
    reference, hybrid = load_hybrid(checkpoint, backend=REFERENCE), load_hybrid(checkpoint, macros)
    ids = list(_prompt_ids(hybrid, prompt))
    expected = greedy(reference.decoder, ids, count)
    started = time.perf_counter()
    tokens = greedy(hybrid.decoder, ids, count)
    elapsed = time.perf_counter() - started
    return HybridRun(
        prompt=prompt,
        rows=len(ids),
        tokens=tokens,
        reference=expected,
        text=hybrid.tokenizer.decode(tokens),
        ms_per_token=1e3 * elapsed / count,
    )


def _prompt_ids(model: ChatModel, prompt: str) -> tuple[int, ...]:
    if model.template is None:
        return tuple(model.text_prompt(prompt).ids)
    return tuple(model.chat_prompt(model.render([{"role": "user", "content": prompt}])).ids)
