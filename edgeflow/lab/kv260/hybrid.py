"""Hybrid execution: the linears of the layers on the accelerator's model, everything else on the CPU.

The one decoder runs it; the operator table alone is another (lab/kv260/linear.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.table.implementations import REFERENCE
from edgeflow.lab.kv260.file import open_macro
from edgeflow.lab.kv260.linear import ACCELERATED, hybrid_table
from edgeflow.lab.kv260.macro_weights import macro_weights, stem_of
from edgeflow.lab.plain_heads import read_with_heads
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.llama import LlamaDecoder
from edgeflow.text.chat_template import ChatTemplate
from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import CheckpointError, ConfigError

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Greedy tokens of a prompt, hybrid and by the W4A16 reference in float32. ms_per_token: of simulating, here."""

    prompt: str
    rows: int
    tokens: list[int]
    reference: list[int]
    text: str
    ms_per_token: float

    @property
    def equal(self) -> bool:
        return self.tokens == self.reference


def load_hybrid(checkpoint: Path, macros: Path | None = None, backend: str = ACCELERATED) -> ChatModel:
    """A chat model in float32 whose linears in 4 bits are served by one of `linear.BACKENDS`.

    macros: the directory of a macro file that has the weights; by default they are the checkpoint's. CheckpointError
    where it is of another model, or the checkpoint is not quantised.
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
        decoder=decoder,
        tokenizer=TextTokenizer(checkpoint, published.text.vocab_size),
        template=ChatTemplate.load(checkpoint),
        generation=published.generation,
        vision=None,
        device=CPU,
    )


@torch.inference_mode()
def greedy(decoder: LlamaDecoder, ids: list[int], count: int) -> list[int]:
    """The `count` likeliest tokens after a prompt, one after the other."""
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


def compare_run(checkpoint: Path, macros: Path | None, prompt: str, count: int) -> Run:
    """Run a prompt hybrid and by the reference. A model with a chat template is asked as in a chat."""
    reference, hybrid = load_hybrid(checkpoint, backend=REFERENCE), load_hybrid(checkpoint, macros)
    ids = list(_prompt_ids(hybrid, prompt))
    expected = greedy(reference.decoder, ids, count)
    started = time.perf_counter()
    tokens = greedy(hybrid.decoder, ids, count)
    elapsed = time.perf_counter() - started
    return Run(
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
