"""Chat models of random weights in the shapes of Qwen2.5, and requests to them."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from typing import Any

import torch

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.lab.gpu.subjects.random_weights import llama_shapes, random_weights
from edgeflow.models.chat import ChatModel
from edgeflow.models.llama import LlamaConfig, LlamaDecoder
from edgeflow.models.published import GenerationConfig

TINY = "tiny-chat"
FAMILY = "qwen2"


def _qwen(
    *, hidden: int, inner: int, layers: int, heads: int, kv_heads: int = 2, vocabulary: int = 151936, tied: bool = True
) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        rope_theta=1e6,
        max_position_embeddings=32768,
        tie_word_embeddings=tied,
        attention_bias=True,
    )


CHAT_SIZES = {
    TINY: _qwen(hidden=64, inner=96, layers=2, heads=4, vocabulary=300),
    "qwen2.5-0.5b": _qwen(hidden=896, inner=4864, layers=24, heads=14),
    "qwen2.5-1.5b": _qwen(hidden=1536, inner=8960, layers=28, heads=12),
    "qwen2.5-3b": _qwen(hidden=2048, inner=11008, layers=36, heads=16),
    "qwen2.5-7b": _qwen(hidden=3584, inner=18944, layers=28, heads=28, kv_heads=4, vocabulary=152064, tied=False),
}


def random_chat(
    config: LlamaConfig, device: torch.device, dtype: torch.dtype, *, group: int = 0, **decoder_options: Any
) -> ChatModel:
    """A model that takes token ids: it has no tokenizer, chat template, or tokens that end an answer.

    group: G of projections in 4 bits; 0 for floats.
    """
    weights = random_weights(llama_shapes(config), device, dtype, group)
    decoder = LlamaDecoder(config, weights, name=FAMILY, **decoder_options)
    return ChatModel(
        name=FAMILY,
        network=decoder,
        tokenizer=None,
        template=None,
        generation=GenerationConfig(stop_ids=frozenset()),
        vision=None,
        device=device,
    )


def random_request(engine: ChatEngine, rows: int, params: SamplingParams, *, known: int = 0) -> Generation:
    """A request in slot 0 with a prompt of `rows` ids, of which the slot already holds the first `known`."""
    model = engine.model
    prompt = model.prompt([(7 * row + 1) % model.config.vocab_size for row in range(rows)])
    return Generation(engine, prompt, params, known=known)


def pass_times(engine: ChatEngine, request: Generation) -> list[float]:
    """Seconds between the tokens of a request, each read by the host."""
    stamps = [perf_counter()]
    for sampled in generate(engine, request, engine.kv.capacity):
        if sampled is not None:
            stamps.append(perf_counter())
    return [after - before for before, after in pairwise(stamps)]
