"""Llama as functions of packed rows and a KV store. Knows nothing of schedulers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels import packed_attention, rms_norm, rope_write_kv, swiglu
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.layout import PackedLayout

Attention = Callable[[Tensor, Tensor, Tensor, PackedLayout], Tensor]


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The fields of `text_config` that matter; defaults are those of the Llama family's configuration class."""

    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    vocab_size: int = 32000
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Tensor
    output: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


class LlamaDecoder:
    """weights: names as in the checkpoint below `language_model.` (model.layers.0.self_attn.q_proj.weight, …)."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Tensor],
        *,
        attention: Attention = packed_attention.slots_in_place,
    ) -> None:
        self.config = config
        self._attention = attention
        self._embedding = weights["model.embed_tokens.weight"]
        self._head = weights.get("lm_head.weight", self._embedding)
        self._norm = weights["model.norm.weight"]
        self._layers = [_fuse(weights, f"model.layers.{index}.") for index in range(config.num_hidden_layers)]
        self._cos, self._sin = (
            table.to(self._embedding.dtype)
            for table in rope_write_kv.rotary_table(
                config.max_position_embeddings, config.head_dim, config.rope_theta, self._embedding.device
            )
        )

    def kv_slots(self, slots: int, capacity: int) -> KVSlots:
        """A store of this model's shape and dtype."""
        config = self.config
        return KVSlots(
            config.num_hidden_layers,
            slots,
            capacity,
            config.num_key_value_heads,
            config.head_dim,
            self._embedding.dtype,
            self._embedding.device,
        )

    def embed(self, ids: Tensor) -> Tensor:
        """[n] → [n, E]"""
        return F.embedding(ids, self._embedding)

    def forward(self, hidden: Tensor, layout: PackedLayout, kv: KVSlots) -> Tensor:
        """[L_Q, E] → [L_Q, E] after the last layer, before the final norm (ActionFlow algorithm 2)."""
        cos, sin = self._cos[layout.row_position], self._sin[layout.row_position]
        for index, layer in enumerate(self._layers):
            hidden = self._run_layer(layer, hidden, cos, sin, kv.layer(index), layout)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head of the rows asked for: [n, E] → [n, V]"""
        return F.linear(rms_norm.fused(hidden, self._norm, self.config.rms_norm_eps), self._head)

    def _run_layer(
        self, layer: _Layer, hidden: Tensor, cos: Tensor, sin: Tensor, kv: tuple[Tensor, Tensor], layout: PackedLayout
    ) -> Tensor:
        config = self.config
        x = rms_norm.fused(hidden, layer.input_norm, config.rms_norm_eps)
        qkv = F.linear(x, layer.qkv)
        q = rope_write_kv.indexed(qkv, config.num_attention_heads, config.num_key_value_heads, cos, sin, kv, layout)
        attended = self._attention(q, *kv, layout).reshape(hidden.shape[0], -1)
        hidden = torch.addmm(hidden, attended, layer.output.t())
        x = rms_norm.fused(hidden, layer.post_norm, config.rms_norm_eps)
        return torch.addmm(hidden, swiglu.fused(F.linear(x, layer.gate_up)), layer.down.t())


def _fuse(weights: Mapping[str, Tensor], prefix: str) -> _Layer:
    attention = prefix + "self_attn."
    return _Layer(
        input_norm=weights[prefix + "input_layernorm.weight"],
        qkv=torch.cat([weights[f"{attention}{name}_proj.weight"] for name in "qkv"]),
        output=weights[attention + "o_proj.weight"],
        post_norm=weights[prefix + "post_attention_layernorm.weight"],
        gate_up=torch.cat([weights[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up")]),
        down=weights[prefix + "mlp.down_proj.weight"],
    )
