"""The gate that training begins with: half open, and it passes on what memory gives."""

from __future__ import annotations

from typing import Final

import torch

from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import GateLayer, GateRules, MemoryGate

WIDTHS: Final = 4  # h / D
OPEN: Final = 0.0  # every number of g: memory has a share of a half
NOISE: Final = 0.02  # deviation of the weights of spare hidden units


def initial_gate(config: LlamaConfig, rules: GateRules, seed: int, base_fingerprint: str = "") -> MemoryGate:
    """A gate in float32 with one MLP for all heads of a layer and g for each query head.

    What memory gives is a mean of values, of the kind that the base's output projection reads. So the MLP begins as the
    identity: its first hidden units are relu(x) and relu(-x), whose difference is x. The others begin at random and
    with next to no influence.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = tuple(_layer(config, generator) for _ in range(config.num_hidden_layers))
    return MemoryGate(
        rules=rules, layers=layers, mlp_hidden=WIDTHS * config.head_dim, base_fingerprint=base_fingerprint
    )


def _layer(config: LlamaConfig, generator: torch.Generator) -> GateLayer:
    width, spare = config.head_dim, (WIDTHS - 2) * config.head_dim
    same = torch.eye(width)
    w1 = torch.cat((same, -same, torch.randn(spare, width, generator=generator) / width**0.5))
    w2 = torch.cat((same, -same, NOISE * torch.randn(width, spare, generator=generator)), 1)
    return GateLayer(
        w1=w1[None],
        b1=torch.zeros(1, len(w1)),
        w2=w2[None],
        b2=torch.zeros(1, width),
        g=torch.full((config.num_attention_heads, width), OPEN),
    )
