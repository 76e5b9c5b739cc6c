"""Random memory gates, and bases in plain torch for them, of any size."""

from __future__ import annotations

from typing import Any

import torch

from edgeflow.kernels.kv.memory import GateLayer
from edgeflow.lab.training.gate.plain_base import PlainBase, PlainLayer
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import GateRules, MemoryGate

SIZE: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "head_dim": 8,
}


def random_gate(
    config: LlamaConfig,
    rules: GateRules,
    *,
    hidden: int = 12,
    per_head: bool = False,
    shared_g: bool = False,
    fingerprint: str = "",
    dtype: torch.dtype = torch.float32,
) -> MemoryGate:
    """A gate whose share of memory is neither small nor large. per_head: an MLP for each head."""
    make = torch.Generator().manual_seed(11)
    width, mlp = config.head_dim, config.num_attention_heads if per_head else 1

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=make)

    layers = (
        GateLayer(
            w1=draw(mlp, hidden, width) / width**0.5,
            b1=draw(mlp, hidden) / 4,
            w2=draw(mlp, width, hidden) / hidden**0.5,
            b2=draw(mlp, width) / 4,
            g=draw(1 if shared_g else config.num_attention_heads, width),
        )
        for _ in range(config.num_hidden_layers)
    )
    given = tuple(GateLayer(**{name: each.to(dtype) for name, each in layer.tensors().items()}) for layer in layers)
    return MemoryGate(rules=rules, layers=given, mlp_hidden=hidden, base_fingerprint=fingerprint)


def random_base(config: LlamaConfig, seed: int = 3) -> PlainBase:
    """A base with weights that make every token matter."""
    make = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=make) * (1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.2)

    def norm(width: int) -> torch.Tensor:
        return 1 + draw(width)

    width, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    rows = config.q_width + 2 * config.kv_width
    layers = tuple(
        PlainLayer(
            input_norm=norm(width),
            qkv=draw(rows, width),
            qkv_bias=draw(rows) if config.attention_bias else None,
            head_norms=(norm(head), norm(head)) if config.head_norm else None,
            output=draw(width, config.q_width),
            post_norm=norm(width),
            gate_up=draw(2 * inner, width),
            down=draw(width, inner),
        )
        for _ in range(config.num_hidden_layers)
    )
    embedding, reach = draw(config.vocab_size, width), config.max_position_embeddings
    return PlainBase(
        config=config,
        embedding=embedding,
        layers=layers,
        norm=norm(width),
        head=embedding if config.tie_word_embeddings else draw(config.vocab_size, width),
        frequencies=config.rope.frequencies(head, config.rope_theta, reach, reach),
    )
