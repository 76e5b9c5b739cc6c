"""EAGLE-3 heads with random weights over any base, and the kinds of drafts of a chat engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgeflow.engine.drafts.kinds import DraftKind, Eagle, Lookup
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.models.chat import ChatModel
from edgeflow.models.checkpoint import Weights
from edgeflow.models.eagle3.config import Eagle3Config
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.models.eagle3.trees import TreeSizes
from edgeflow.models.llama import LlamaConfig

TREE = TreeSizes(rows=14, depth=2, width=4)
DEPTH = 2
KINDS = ("lookup", "chain", "tree")
ON_THE_DEVICE = built_in_table().forcing(packed_attention="masked", linear="gemm")
"""Operators that read nothing on the host."""


def tiny_config(base: LlamaConfig, tokens: int, *, own_embedding: bool = False) -> Eagle3Config:
    """A head that reads the first layers of its base. tokens: of its vocabulary."""
    text = LlamaConfig(
        hidden_size=base.hidden_size,
        intermediate_size=36,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=base.vocab_size,
        rope_theta=500.0,
        max_position_embeddings=base.max_position_embeddings,
    )
    return Eagle3Config(
        text=text,
        draft_vocabulary=tokens,
        taps=tuple(range(min(base.num_hidden_layers, 3))),
        target_hidden=base.hidden_size,
        norm_before_residual=False,
        own_embedding=own_embedding,
    )


def tiny_head(model: ChatModel, tokens: Sequence[int], table: OperatorTable = ON_THE_DEVICE) -> Eagle3Head:
    """tokens: those that it can propose; with few of them some drafts are right."""
    config, draw = tiny_config(model.config, len(tokens)), torch.Generator().manual_seed(5)
    shapes = {name: shape for name, shape in config.shapes.items() if name != "d2t"}
    tensors = {name: torch.randn(shape, generator=draw) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    tensors |= {name: 1 + 0.3 * tensors[name] for name, shape in shapes.items() if len(shape) == 1}
    weights = Weights.of(tensors, model.decoder.dtype, model.device)
    targets = torch.tensor(sorted(tokens), device=model.device)
    return Eagle3Head(config, weights, model.decoder.embedding, targets, table)


def kind_of(name: str, model: ChatModel, tokens: Sequence[int], table: OperatorTable = ON_THE_DEVICE) -> DraftKind:
    """One of KINDS."""
    if name == "lookup":
        return Lookup(drafts=5)
    return Eagle(head=tiny_head(model, tokens, table), tree=TREE if name == "tree" else None, depth=DEPTH)
