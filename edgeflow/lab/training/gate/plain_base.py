"""A published Llama, Qwen2 or Qwen3 decoder in plain torch, layer by layer, without a KV store.

Its rows may have leading dimensions, and gradients pass through it. Its own weights never require gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.lab.plain_attention import read_with_heads
from edgeflow.models.chat import stems_of
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.vocabulary import shares_embedding

Turns = tuple[Tensor, Tensor]
"""Cosines and sines of positions, each [T, D]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlainLayer:
    """qkv [(H + 2 KH) D, E]."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norms: tuple[Tensor, Tensor] | None
    """The head norms of queries and keys [D]; gate_up [2F, E]; others as published."""
    output: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def read(cls, config: LlamaConfig, weights: Weights) -> PlainLayer:
        """Read a layer. weights: those below `model.layers.<index>.`."""
        width, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
        rows = {"q": config.q_width, "k": config.kv_width, "v": config.kv_width}
        bias = [weights.take(f"self_attn.{name}_proj.bias", rows[name]) for name in rows if config.attention_bias]
        norms = [weights.take(f"self_attn.{name}_norm.weight", head) for name in ("q", "k") if config.head_norm]
        return cls(
            input_norm=weights.take("input_layernorm.weight", width),
            qkv=_joined(weights, [(f"self_attn.{name}_proj", rows[name]) for name in rows], width),
            qkv_bias=torch.cat(bias) if bias else None,
            head_norms=(norms[0], norms[1]) if norms else None,
            output=weights.linear("self_attn.o_proj", width, config.q_width).floats(),
            post_norm=weights.take("post_attention_layernorm.weight", width),
            gate_up=_joined(weights, [("mlp.gate_proj", inner), ("mlp.up_proj", inner)], width),
            down=weights.linear("mlp.down_proj", width, inner).floats(),
        )

    def tensors(self) -> list[Tensor]:
        """All of its weights."""
        every = [self.input_norm, self.qkv, self.qkv_bias, self.output, self.post_norm, self.gate_up, self.down]
        return [tensor for tensor in (*every, *(self.head_norms or ())) if tensor is not None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlainBase:
    """The decoder. embedding and head [V, E], one tensor if they are tied; norm [E]; frequencies [D/2] float32."""

    config: LlamaConfig
    embedding: Tensor
    layers: tuple[PlainLayer, ...]
    norm: Tensor
    head: Tensor
    frequencies: Tensor

    @classmethod
    def read(cls, directory: Path, dtype: torch.dtype, device: torch.device) -> PlainBase:
        """Read a checkpoint; projections stored in 4 bits become floats. CheckpointError as in `Weights`."""
        config = read_with_heads(directory, "a memory gate").text
        weights = Weights(directory, dtype, device)
        vocab, width, stem = config.vocab_size, config.hidden_size, stems_of(weights)[0]
        embedding = weights.take(f"{stem}embed_tokens.weight", vocab, width)
        tied = shares_embedding(weights, stem, tied=config.tie_word_embeddings)
        below = (weights.under(f"{stem}layers.{index}.") for index in range(config.num_hidden_layers))
        reach = config.max_position_embeddings
        return cls(
            config=config,
            embedding=embedding,
            layers=tuple(PlainLayer.read(config, each) for each in below),
            norm=weights.take(f"{stem}norm.weight", width),
            head=embedding if tied else weights.linear("lm_head", vocab, width).floats(),
            frequencies=config.rope.frequencies(config.head_dim, config.rope_theta, reach, reach).to(device),
        )

    @property
    def weights(self) -> int:
        """Count of the numbers in its tensors, a tied head counted once."""
        return sum(tensor.numel() for tensor in self.tensors())

    def tensors(self) -> list[Tensor]:
        """All of its weights, each once."""
        own = [self.embedding, self.norm, *([] if self.head is self.embedding else [self.head])]
        return [*own, *(tensor for layer in self.layers for tensor in layer.tensors())]

    def embed(self, ids: Tensor) -> Tensor:
        """From ids [...] to rows [..., E]."""
        return F.embedding(ids, self.embedding)

    def turns(self, positions: Tensor) -> Turns:
        """The rotations of positions [T]."""
        angles = torch.outer(positions.float(), self.frequencies).repeat(1, 2)
        return angles.cos().to(self.norm.dtype), angles.sin().to(self.norm.dtype)

    def heads(self, layer: PlainLayer, x: Tensor, turns: Turns) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [..., H, T, D], rotated keys and values [..., KH, T, D] of rows x [..., T, E]."""
        config = self.config
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        rows = F.linear(self._normed(x, layer.input_norm), layer.qkv, layer.qkv_bias)
        rows = rows.view(*x.shape[:-1], heads + 2 * kv_heads, config.head_dim).transpose(-2, -3)
        q, k, v = torch.split(rows, [heads, kv_heads, kv_heads], dim=-3)
        if layer.head_norms is not None:
            q, k = (self._normed(each, norm) for each, norm in zip((q, k), layer.head_norms, strict=True))
        return _turned(q, turns), _turned(k, turns), v

    def finish(self, layer: PlainLayer, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, from its input x [..., T, E] and the attention of its heads [..., H, T, D]."""
        x = x + F.linear(attended.transpose(-2, -3).flatten(-2), layer.output)
        gate, up = F.linear(self._normed(x, layer.post_norm), layer.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, layer.down)

    def final(self, x: Tensor) -> Tensor:
        """The final norm."""
        return self._normed(x, self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """From [..., E] to [..., V]."""
        return F.linear(hidden, self.head)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)


def _joined(weights: Weights, names: Sequence[tuple[str, int]], inputs: int) -> Tensor:
    """The weights of projections that read the same rows, concatenated."""
    return torch.cat([weights.linear(name, outputs, inputs).floats() for name, outputs in names])


def _turned(x: Tensor, turns: Turns) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * turns[0] + torch.cat((-second, first), dim=-1) * turns[1]
