"""The decoder of a checkpoint, read block by block in float32, so that a large model is never in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.lab.quantize.search.block import (
    DOWN,
    GATE,
    KEY,
    LINEARS,
    OUTPUT,
    QUERY,
    UP,
    VALUE,
    BlockShape,
    DecoderBlock,
    Rotation,
)
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.vocabulary import shares_embedding


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Head:
    """The final norm [E] and the output projection [V, E] of a decoder, in float32."""

    norm: Tensor
    weight: Tensor
    eps: float

    def logits(self, hidden: Tensor) -> Tensor:
        """From [..., E] to [..., V]."""
        unit = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.eps)
        return F.linear(unit * self.norm, self.weight)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DecoderTensors:
    """A decoder's tensors by their published names, and the shape of its blocks."""

    weights: Weights
    """The weights of the whole checkpoint in float32."""
    config: LlamaConfig
    shape: BlockShape
    stem: str
    """Beginning of the names of the decoder's tensors (`model.`)."""
    head: str
    """Name of the output projection."""
    inner: int
    """F with padding; config.intermediate_size is F as stored."""

    @classmethod
    def of(cls, weights: Weights, config: LlamaConfig, *, stem: str, inner: int) -> DecoderTensors:
        """The decoder of the Llama family in a checkpoint."""
        shape = BlockShape(
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            eps=config.rms_norm_eps,
        )
        tied = shares_embedding(weights, stem, tied=config.tie_word_embeddings)
        head = f"{stem}embed_tokens.weight" if tied else "lm_head.weight"
        return cls(weights=weights, config=config, shape=shape, stem=stem, head=head, inner=inner)

    def block_prefix(self, index: int) -> str:
        """The beginning of the names of a block's tensors."""
        return f"{self.stem}layers.{index}."

    def place(self, name: str) -> tuple[int | None, str]:
        """The block of a tensor and its name relative to the block; None and its full name for a tensor outside the
        blocks.
        """
        stem = f"{self.stem}layers."
        if not name.startswith(stem):
            return None, name
        index, _, rest = name.removeprefix(stem).partition(".")
        return int(index), rest

    def holds(self, name: str) -> bool:
        """True for a tensor of the decoder or its head, false for other parts of the checkpoint."""
        return name.startswith(self.stem) or name == self.head

    def block(self, index: int) -> DecoderBlock:
        """Read a block; CheckpointError if a tensor is missing or has the wrong shape."""
        below = self.weights.under(self.block_prefix(index))
        shapes = linear_shapes(self.config)
        tensors = {name: below[name] for name in below if not name.endswith("rotary_emb.inv_freq")}
        for linear in LINEARS:
            tensors[f"{linear}.weight"] = padded(linear, below.take(f"{linear}.weight", *shapes[linear]), self.inner)
        return DecoderBlock(self.shape, tensors)

    def blocks(self) -> Iterator[DecoderBlock]:
        """Every block in order, one in memory at a time."""
        return map(self.block, range(self.config.num_hidden_layers))

    def rotation(self, positions: int) -> Rotation:
        """Rotary embedding of the positions 0 to `positions` - 1."""
        config = self.config
        trained = config.max_position_embeddings
        return Rotation.of(
            config.rope.frequencies(config.head_dim, config.rope_theta, trained, min(positions, trained)), positions
        )

    def embed(self, ids: Tensor) -> Tensor:
        """[..., L] int64 → [..., L, E]"""
        table = self.weights.take(f"{self.stem}embed_tokens.weight", self.config.vocab_size, self.config.hidden_size)
        return F.embedding(ids, table)

    def read_head(self) -> Head:
        """Read the final norm and the output projection; CheckpointError where one is missing or has the wrong shape.

        The projection may be larger than a block: read it once for all that it is needed for.
        """
        width = self.config.hidden_size
        return Head(
            norm=self.weights.take(f"{self.stem}norm.weight", width),
            weight=self.weights.take(self.head, self.config.vocab_size, width),
            eps=self.shape.eps,
        )


def linear_shapes(config: LlamaConfig) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of every linear of a block, as stored."""
    width, inner = config.hidden_size, config.intermediate_size
    return {
        QUERY: (config.q_width, width),
        KEY: (config.kv_width, width),
        VALUE: (config.kv_width, width),
        OUTPUT: (width, config.q_width),
        GATE: (inner, width),
        UP: (inner, width),
        DOWN: (width, inner),
    }


def padded(linear: str, weight: Tensor, inner: int) -> Tensor:
    """The weight of an MLP whose width is padded with zeros to `inner`, which is the same function; others as they
    are."""
    if linear in (GATE, UP):
        return F.pad(weight, (0, 0, 0, inner - weight.shape[0]))
    return F.pad(weight, (0, inner - weight.shape[1])) if linear == DOWN else weight
