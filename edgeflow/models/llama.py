"""The Llama family as functions of packed rows and a KV store. Knows nothing of schedulers.

Qwen2 is Llama with biases on queries, keys and values; Qwen3 has a norm of each head's query and key instead, and
heads of any width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.bind_linear import bind_linear
from edgeflow.kernels.int8_kv import PackedAttentionInt8, RopeWriteInt8
from edgeflow.kernels.kv import KVSlots, Store
from edgeflow.kernels.layout import PackedLayout
from edgeflow.kernels.linear import Linear
from edgeflow.kernels.packed_attention import PackedAttention
from edgeflow.kernels.rms_norm import RmsNorm
from edgeflow.kernels.rope_write_kv import RopeWriteKV, RotaryTable, RowPlaces
from edgeflow.kernels.shift_kv import ShiftKV
from edgeflow.kernels.swiglu import SwiGLU
from edgeflow.kernels.table import OperatorKey, OperatorTable, built_in_table
from edgeflow.models.checkpoint import Weights
from edgeflow.models.rope import PLAIN, Rope

MAX_SIZE = 1 << 20
BindLinear = Callable[[str, Tensor, "Tensor | None"], Linear]
"""(role, weight, bias) → what serves it"""


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The fields of `text_config` that matter; defaults are those of the Llama family's configuration class.

    head_dim: D; 0 stands for hidden_size / heads. attention_bias: of queries, keys and values.
    """

    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    vocab_size: int = 32000
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    head_dim: int = 0
    attention_bias: bool = False
    head_norm: bool = False
    rope: Rope = PLAIN

    def __post_init__(self) -> None:
        self._check_fields()
        if not self.head_dim:
            if self.hidden_size % (2 * self.num_attention_heads):
                heads = self.num_attention_heads
                raise ValueError(f"{heads} heads do not divide hidden_size {self.hidden_size} evenly")
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.head_dim % 2:
            raise ValueError(f"text_config.head_dim must be even, got {self.head_dim}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(f"{self.num_key_value_heads} KV heads do not divide {self.num_attention_heads} heads")
        if self.rope.sections and sum(self.rope.sections) != self.head_dim // 2:
            sections = list(self.rope.sections)
            raise ValueError(
                f"rope_scaling.mrope_section {sections} must add up to head_dim / 2 = {self.head_dim // 2}"
            )

    def _check_fields(self) -> None:
        """Sizes are whole numbers from 1 to MAX_SIZE, the others positive numbers or flags."""
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name == "rope":
                continue
            if isinstance(field.default, bool):
                fits, wanted = isinstance(value, bool), "true or false"
            elif isinstance(field.default, int):
                least = min(1, field.default)
                fits = type(value) is int and least <= value <= MAX_SIZE
                wanted = f"a whole number, at least {least}, up to {MAX_SIZE}"
            else:
                fits, wanted = type(value) in (int, float) and 0 <= value < math.inf, "a number, at least 0"
            if not fits:
                raise ValueError(f"text_config.{name} must be {wanted}, got {value!r}")

    @property
    def q_width(self) -> int:
        """H * D"""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """KH * D"""
        return self.num_key_value_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class _Layer:
    """qkv: [(H + 2 KH) D, E]; head_norms: of queries and keys [D]; gate_up: [2F, E]; others as published."""

    input_norm: Tensor
    qkv: Linear
    head_norms: tuple[Tensor, Tensor] | None
    output: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear

    @classmethod
    def of(cls, config: LlamaConfig, weights: Weights, linear: BindLinear) -> _Layer:
        """weights: those below `model.layers.<index>.`; projections that read the same rows are fused."""
        width, inner = config.hidden_size, config.intermediate_size
        rows = {"q": config.q_width, "k": config.kv_width, "v": config.kv_width}
        qkv = [weights.take(f"self_attn.{name}_proj.weight", count, width) for name, count in rows.items()]
        biased = rows if config.attention_bias else {}
        bias = [weights.take(f"self_attn.{name}_proj.bias", count) for name, count in biased.items()]
        gate_up = [weights.take(f"mlp.{name}_proj.weight", inner, width) for name in ("gate", "up")]
        return cls(
            input_norm=weights.take("input_layernorm.weight", width),
            qkv=linear("qkv", torch.cat(qkv), torch.cat(bias) if bias else None),
            head_norms=_head_norms(weights, config.head_dim) if config.head_norm else None,
            output=linear("output", weights.take("self_attn.o_proj.weight", width, config.q_width), None),
            post_norm=weights.take("post_attention_layernorm.weight", width),
            gate_up=linear("gate_up", torch.cat(gate_up), None),
            down=linear("down", weights.take("mlp.down_proj.weight", width, inner), None),
        )


def _head_norms(weights: Weights, head_dim: int) -> tuple[Tensor, Tensor]:
    return weights.take("self_attn.q_norm.weight", head_dim), weights.take("self_attn.k_norm.weight", head_dim)


@dataclass(frozen=True, slots=True)
class _Operators:
    """What serves this model on its device, looked up once."""

    rms_norm: RmsNorm
    rope_write_kv: RopeWriteKV
    swiglu: SwiGLU
    shift_kv: ShiftKV
    packed_attention: PackedAttention
    rope_write_kv_int8: RopeWriteInt8
    packed_attention_int8: PackedAttentionInt8

    @classmethod
    def of(cls, table: OperatorTable, model: str, like: Tensor, attention: PackedAttention | None) -> _Operators:
        def find(name: str) -> object:
            return table.resolve(OperatorKey(name, model_name=model), like.device, like.dtype)

        found = {name: find(name) for name in cls.__dataclass_fields__}
        if attention is not None:
            found["packed_attention"] = attention
        return cls(**found)  # type: ignore[arg-type]

    def over(self, rows: RowPlaces, layout: PackedLayout, kv: KVSlots) -> _Pass:
        """A pass over this kind of store."""
        if kv.int8:
            return _Pass(rows, self.rope_write_kv_int8, self.packed_attention_int8(layout, kv))
        return _Pass(rows, self.rope_write_kv, self.packed_attention(layout, kv))


@dataclass(frozen=True, slots=True)
class _Pass:
    """What every layer shares: where rows go, what writes them there, what reads. The last two take a layer's store."""

    rows: RowPlaces
    write: Callable[..., Tensor]
    attend: Callable[..., Tensor]


class LlamaDecoder:
    """weights: names as published (model.layers.0.self_attn.q_proj.weight, …); all but the head's begin with `stem`.

    name: of the model, by which operators are looked up. attention: serves instead of the table's choice (ablations).
    """

    def __init__(
        self,
        config: LlamaConfig,
        weights: Weights,
        *,
        stem: str = "model.",
        name: str = "llama",
        table: OperatorTable | None = None,
        attention: PackedAttention | None = None,
    ) -> None:
        table = table or built_in_table()

        def linear(role: str, weight: Tensor, bias: Tensor | None) -> Linear:
            return bind_linear(table, OperatorKey("linear", model_name=name, layer_role=role), weight, bias)

        self.config = config
        vocab, width = config.vocab_size, config.hidden_size
        self._embedding = weights.take(f"{stem}embed_tokens.weight", vocab, width)
        tied = config.tie_word_embeddings
        self._head = linear("head", self._embedding if tied else weights.take("lm_head.weight", vocab, width), None)
        self._norm = weights.take(f"{stem}norm.weight", width)
        layers = range(config.num_hidden_layers)
        self._layers = [_Layer.of(config, weights.under(f"{stem}layers.{index}."), linear) for index in layers]
        self._operators = _Operators.of(table, name, self._embedding, attention)
        self._rotary: dict[int, RotaryTable] = {}  # by the capacity of a store

    def kv_slots(self, slots: int, capacity: int, *, int8: bool = False) -> KVSlots:
        """A store of this model's shape, in its dtype or in 8 bits."""
        self._rotary_of(capacity)
        config, like = self.config, self._embedding
        shape = (config.num_hidden_layers, slots, capacity, config.num_key_value_heads, config.head_dim)
        return KVSlots(*shape, like.dtype, like.device, shift=self._operators.shift_kv, int8=int8)

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self._embedding.dtype

    def embed(self, ids: Tensor) -> Tensor:
        """[n] → [n, E]"""
        return F.embedding(ids, self._embedding)

    def forward(self, hidden: Tensor, layout: PackedLayout, kv: KVSlots) -> Tensor:
        """[L_Q, E] → [L_Q, E] after the last layer, before the final norm (ActionFlow algorithm 2)."""
        rows = self._rotary_of(kv.capacity).places(layout, kv.capacity)
        shared = self._operators.over(rows, layout, kv)
        for index, layer in enumerate(self._layers):
            hidden = self._run_layer(layer, hidden, shared, kv.layer(index))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head of the rows asked for: [n, E] → [n, V]"""
        return self._head(self.final_norm(hidden))

    def final_norm(self, hidden: Tensor) -> Tensor:
        """What the head reads: [n, E] → [n, E]"""
        return self._operators.rms_norm(hidden, self._norm, self.config.rms_norm_eps)

    def _run_layer(self, layer: _Layer, hidden: Tensor, shared: _Pass, store: Store) -> Tensor:
        config, operators = self.config, self._operators
        x = operators.rms_norm(hidden, layer.input_norm, config.rms_norm_eps)
        qkv = layer.qkv(x)
        if layer.head_norms is not None:
            qkv = self._norm_heads(qkv, *layer.head_norms)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        q = shared.write(qkv, heads, kv_heads, shared.rows, *store)
        hidden = layer.output(shared.attend(q, *store).flatten(1), hidden)
        x = operators.rms_norm(hidden, layer.post_norm, config.rms_norm_eps)
        return layer.down(operators.swiglu(layer.gate_up(x)), hidden)

    def _norm_heads(self, qkv: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        """Each head's query and key by itself; values as they are."""
        config, norm = self.config, self._operators.rms_norm
        heads = qkv.view(qkv.shape[0], -1, config.head_dim)
        q, k, v = torch.split(heads, [config.num_attention_heads, *[config.num_key_value_heads] * 2], dim=1)
        return torch.cat([norm(q, q_norm, config.rms_norm_eps), norm(k, k_norm, config.rms_norm_eps), v], 1).flatten(1)

    def _rotary_of(self, capacity: int) -> RotaryTable:
        if capacity not in self._rotary:
            config, rope = self.config, self.config.rope
            positions = config.max_position_embeddings
            frequencies = rope.frequencies(config.head_dim, config.rope_theta, positions, capacity)
            self._rotary[capacity] = RotaryTable.turning(capacity, frequencies, self._embedding, rope.sections)
        return self._rotary[capacity]
