"""The Llama family as functions of packed rows and a KV store. Knows nothing of schedulers.

Qwen2 is Llama with biases on queries, keys and values; Qwen3 has a norm of each head's query and key instead, and
heads of any width. DeepSeek's dense layout attends over latents (models/attention/latent.py). What serves each call is
looked up per stage of a pass (docs/develop/kernels.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import KVFormat, KVLayer, KVShape
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.shift_kv import ShiftKV
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.linear import Linear
from edgeflow.kernels.packed_attention import PackedAttention
from edgeflow.kernels.rope_write_kv import RotaryTable
from edgeflow.kernels.table.bind_linear import bind_linear
from edgeflow.kernels.table.dimensions import STAGES, stage_of
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.weights import FLOAT, Weight
from edgeflow.models.attention.heads import GroupedHeads
from edgeflow.models.attention.latent import LatentHeads, LatentSizes
from edgeflow.models.attention.operators import AttentionForm, BindLinear, LayerAttention, Operators, PassOperators
from edgeflow.models.checkpoint import Weights
from edgeflow.models.network import Taps, TokenRows
from edgeflow.models.rope import PLAIN, Rope
from edgeflow.models.vocabulary import read_vocabulary

MAX_SIZE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
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
    tie_word_embeddings: bool = False
    head_dim: int = 0
    """D; 0 stands for hidden_size / heads."""
    attention_bias: bool = False
    """True where queries, keys and values have a bias."""
    head_norm: bool = False
    """True where the queries and keys of each head are normed."""
    rope: Rope = PLAIN
    latent: LatentSizes | None = None
    """The sizes of attention over latents, for which num_key_value_heads and head_dim are those of its slots, 1 and the
    width of a row; None for grouped queries.
    """

    def __post_init__(self) -> None:
        self._check_fields()
        if self.latent is not None:
            object.__setattr__(self, "num_key_value_heads", 1)
            object.__setattr__(self, "head_dim", self.latent.width)
        if self.rope.kind == "yarn" and self.rope_theta <= 1:
            raise ValueError(f"text_config.rope_theta must be over 1 with yarn, got {self.rope_theta}")
        if not self.head_dim:
            if self.hidden_size % (2 * self.num_attention_heads):
                heads = self.num_attention_heads
                raise ValueError(f"{heads} heads do not divide hidden_size {self.hidden_size} evenly")
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.attention.rotary % 2:
            name = "head_dim" if self.latent is None else "qk_rope_head_dim"
            raise ValueError(f"text_config.{name} must be even, got {self.attention.rotary}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(f"{self.num_key_value_heads} KV heads do not divide {self.num_attention_heads} heads")
        if self.rope.sections and sum(self.rope.sections) != self.head_dim // 2:
            sections = list(self.rope.sections)
            raise ValueError(
                f"rope_scaling.mrope_section {sections} must add up to head_dim / 2 = {self.head_dim // 2}"
            )

    def _check_fields(self) -> None:
        """Check that sizes are integers from 1 to MAX_SIZE, and the others positive numbers or flags."""
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name in ("rope", "latent"):
                continue
            if isinstance(field.default, bool):
                fits, wanted = isinstance(value, bool), "true or false"
            elif isinstance(field.default, int):
                least = min(1, field.default)
                fits = type(value) is int and least <= value <= MAX_SIZE
                wanted = f"an integer, at least {least}, up to {MAX_SIZE}"
            else:
                fits, wanted = type(value) in (int, float) and 0 <= value < math.inf, "a number, at least 0"
            if not fits:
                raise ValueError(f"text_config.{name} must be {wanted}, got {value!r}")

    @property
    def attention(self) -> AttentionForm:
        """The form of attention of all layers."""
        if self.latent is not None:
            scale = self.latent.query**-0.5 * self.rope.score_factor
            heads = self.num_attention_heads
            return LatentHeads(hidden=self.hidden_size, heads=heads, sizes=self.latent, scale=scale)
        return GroupedHeads(
            hidden=self.hidden_size,
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            bias=self.attention_bias,
            norm=self.head_norm,
            eps=self.rms_norm_eps,
        )

    def rotary_table(self, kv: KVSlots, like: Tensor) -> RotaryTable:
        """The rotations of all positions of a store, in the dtype and on the device of `like`."""
        rope, trained = self.rope, self.max_position_embeddings
        frequencies = rope.frequencies(self.attention.rotary, self.rope_theta, trained, kv.capacity)
        positions = kv.format.turned(kv.capacity)
        return RotaryTable.turning(positions, frequencies, like, rope.sections, rope.turn_factor)

    def kv_shape(self, dtype: torch.dtype, capacity: int = 0) -> KVShape:
        """The sizes of a store of such a model."""
        layers, heads = self.num_hidden_layers, self.num_key_value_heads
        return KVShape(layers=layers, capacity=capacity, kv_heads=heads, head_dim=self.head_dim, dtype=dtype)

    @property
    def q_width(self) -> int:
        """H * D"""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """KH * D"""
        return self.num_key_value_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class _LlamaLayer:
    """Weights of one layer."""

    input_norm: Tensor
    attention: LayerAttention
    post_norm: Tensor
    gate_up: Linear
    """[2F, E]: gate and up, fused; other weights are as published."""
    down: Linear
    kind: str
    """The kind of layer by which a pass gives the visibility of its rows."""

    @classmethod
    def of_stages(
        cls, config: LlamaConfig, weights: Weights, linear: BindLinear, operators: Mapping[str, Operators], kind: str
    ) -> dict[str, _LlamaLayer]:
        """The layer in each stage. weights: those below `model.layers.<index>.`; operators: of each stage. Projections
        that read the same rows are fused."""
        width, inner = config.hidden_size, config.intermediate_size
        attention = config.attention.of_stages(weights.under("self_attn."), linear, operators)
        gate, up = (weights.linear(f"mlp.{name}_proj", inner, width) for name in ("gate", "up"))
        input_norm = weights.take("input_layernorm.weight", width)
        post_norm = weights.take("post_attention_layernorm.weight", width)
        gate_up = linear("gate_up", gate.cat([up]), None)
        down = linear("down", weights.linear("mlp.down_proj", width, inner), None)
        return {
            stage: cls(
                input_norm=input_norm,
                attention=attention[stage],
                post_norm=post_norm,
                gate_up=gate_up[stage],
                down=down[stage],
                kind=kind,
            )
            for stage in STAGES
        }


@dataclass(frozen=True, slots=True)
class _SampledRows:
    """The sampled rows of a pass. rows [n]."""

    rows: Tensor
    shared: PassOperators | None
    """The operators of a pass of only these rows; None where there are no rows."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """The model as the passes of one stage run it."""

    config: LlamaConfig
    operators: Operators
    layers: tuple[_LlamaLayer, ...]
    head: Linear

    def forward(
        self,
        hidden: Tensor,
        shared: PassOperators,
        stores: Callable[[int], KVLayer],
        sampled: _SampledRows | None = None,
        taps: Taps | None = None,
    ) -> Tensor:
        """All layers. The sum of a layer's input and output is formed by the norm that reads it.

        sampled: the rows that the last layer computes beyond their keys and values; None for all. taps: keeps the
        inputs of some layers.
        """
        eps, operators = self.config.rms_norm_eps, self.operators
        residual = hidden.clone()  # sums replace it from here on
        x = operators.input_norm(hidden, self.layers[0].input_norm, eps)
        for index, layer in enumerate(self.layers):
            if index:
                x, residual = operators.add_input_norm(x, residual, layer.input_norm, eps)
            if taps is not None:
                taps.keep(index, residual)
            q = layer.attention.write(x, shared, stores(index))
            if sampled is not None and layer is self.layers[-1]:
                if sampled.shared is None:
                    return residual[:0]
                q, residual, shared = q[sampled.rows], residual[sampled.rows], sampled.shared
            x = layer.attention.finish(shared.attend[layer.kind](q, stores(index)))
            x, residual = operators.add_post_norm(x, residual, layer.post_norm, eps)
            x = layer.down(operators.swiglu(layer.gate_up(x)))
        return residual.add_(x)


class LlamaDecoder:
    """weights: names as published (model.layers.0.self_attn.q_proj.weight, …); all but the head's begin with `stem`.

    name: the model_name by which operators are looked up, the checkpoint's model_type. layer_kinds: the kind of each
    layer, by which a layout may say what rows see there; by default all are of kind "". attention: serves instead of
    the table's choice (ablations). head: the format in which the head is held (models/vocabulary.py). embedding: other
    networks share it.
    """

    def __init__(
        self,
        config: LlamaConfig,
        weights: Weights,
        *,
        stem: str = "model.",
        name: str = "llama",
        table: OperatorTable | None = None,
        layer_kinds: Sequence[str] | None = None,
        attention: PackedAttention | None = None,
        head: str = FLOAT,
    ) -> None:
        self._table = table = table or built_in_table()
        self._layer_kinds = tuple(layer_kinds or [""] * config.num_hidden_layers)
        self._kinds = tuple(dict.fromkeys(self._layer_kinds))

        def linear(role: str, weight: Weight, bias: Tensor | None) -> Mapping[str, Linear]:
            return bind_linear(table, OperatorKey(op_name="linear", model_name=name, layer_role=role), weight, bias)

        if len(self._layer_kinds) != config.num_hidden_layers:
            raise ValueError(f"layer_kinds: {len(self._layer_kinds)} of {config.num_hidden_layers} layers")
        self.config = config
        self.name = name
        vocab, width = config.vocab_size, config.hidden_size
        tied = config.tie_word_embeddings
        self.embedding, head_weight = read_vocabulary(weights, stem, vocab, width, tied=tied, head=head)
        bound_head = linear("head", head_weight, None)
        self._norm = like = weights.take(f"{stem}norm.weight", width)

        def find(stage: str, key: OperatorKey) -> Any:
            return table.resolve(replace(key, model_name=name, stage=stage), like.device, like.dtype)

        operators = {stage: Operators.of(partial(find, stage), attention) for stage in STAGES}
        below = [(weights.under(f"{stem}layers.{index}."), kind) for index, kind in enumerate(self._layer_kinds)]
        layers = [_LlamaLayer.of_stages(config, each, linear, operators, kind) for each, kind in below]
        self._stages = {
            stage: _Stage(config, operators[stage], tuple(layer[stage] for layer in layers), bound_head[stage])
            for stage in STAGES
        }
        # brings a fixed prefix before a prompt
        self._shift_kv: ShiftKV = find("prefill", OperatorKey(op_name="shift_kv"))
        self._rotary: dict[tuple[int, int], RotaryTable] = {}  # by the capacity and the positions of a store

    def kv_slots(self, slots: int, capacity: int, format: KVFormat | None = None) -> KVSlots:
        """A store of this model's shape, by default in its own format."""
        config, like = self.config, self._norm
        kv = KVSlots(
            layers=config.num_hidden_layers,
            slots=slots,
            capacity=capacity,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            dtype=like.dtype,
            device=like.device,
            shift=self._shift_kv,
            format=format or config.attention.kv_format,
        )
        self._rotary_of(kv)
        return kv

    @property
    def dtype(self) -> torch.dtype:
        """The dtype it computes in."""
        return self._norm.dtype

    def reads_places(self, kv: KVSlots) -> bool:
        """True when attention over a store reads on the host where rows are placed."""
        return self._table.reads_places(self.name, kv.format.name, Hardware.of(self._norm.device), self.dtype)

    @property
    def prompt_row(self) -> tuple[int, torch.dtype]:
        """E, and the dtype it computes in."""
        return self.config.hidden_size, self.dtype

    def prompt_rows(self, ids: Tensor) -> Tensor:
        """[n] → [n, E], embedded"""
        return self.embed(ids)

    def embed(self, ids: Tensor) -> Tensor:
        """[n] → [n, E]"""
        return self.embedding(ids)

    def next_logits(self, rows: TokenRows, layout: PackedLayout, kv: KVSlots, taps: Taps | None = None) -> Tensor:
        """Logits of the sampled rows of a pass [n, V]. taps: as in `forward_sampled`."""
        hidden = self.forward_sampled(rows.embedded(self.embed), layout, kv, taps)
        if not len(hidden):
            return hidden.new_empty(0, self.config.vocab_size)
        return self.logits(hidden, stage_of(layout.lengths))

    def forward(self, hidden: Tensor, layout: PackedLayout, kv: KVSlots, taps: Taps | None = None) -> Tensor:
        """[L_Q, E] → [L_Q, E] after the last layer, before the final norm (ActionFlow algorithm 2).

        taps: keeps the inputs of some layers; ValueError for a layer that the model does not have.
        """
        self._check(taps)
        stage, shared = self._over(layout, kv)
        return stage.forward(hidden, shared, kv.layer, taps=taps)

    def forward_sampled(self, hidden: Tensor, layout: PackedLayout, kv: KVSlots, taps: Taps | None = None) -> Tensor:
        """[L_Q, E] → [n, E]: the rows of `forward` that are sampled.

        The other rows are done when the last layer has written their keys and values: nothing reads their outputs.
        There the sampled rows attend as decode rows do, and are served by that stage's attention. taps: as in
        `forward`, and of all rows.
        """
        self._check(taps)
        stage, shared = self._over(layout, kv)
        rows, decode = layout.sampled_rows, self._stages["decode"].operators
        if len(hidden) == len(rows):
            return stage.forward(hidden, shared, kv.layer, taps=taps)
        alone = decode.over(shared.rows, layout.of_sampled_rows(), kv, self._layer_kinds[-1:]) if len(rows) else None
        return stage.forward(hidden, shared, kv.layer, _SampledRows(rows, alone), taps)

    def _check(self, taps: Taps | None) -> None:
        layers = self.config.num_hidden_layers
        if taps is not None and max(taps.layers) >= layers:
            raise ValueError(f"taps name layer {max(taps.layers)}, but the model has {layers} layers, the first is 0")

    def _over(self, layout: PackedLayout, kv: KVSlots) -> tuple[_Stage, PassOperators]:
        """The stage of a pass, and the operators its layers share."""
        rows = self._rotary_of(kv).places(layout, kv.capacity)
        stage = self._stages[stage_of(layout.lengths)]
        return stage, stage.operators.over(rows, layout, kv, self._kinds)

    def logits(self, hidden: Tensor, stage: str) -> Tensor:
        """Final norm and head of some rows of a pass: [n, E] → [n, V]. stage: of the pass."""
        return self._stages[stage].head(self.final_norm(hidden, stage))

    def final_norm(self, hidden: Tensor, stage: str) -> Tensor:
        """The final norm, before the head: [n, E] → [n, E]"""
        return self._stages[stage].operators.final_norm(hidden, self._norm, self.config.rms_norm_eps)

    def _rotary_of(self, kv: KVSlots) -> RotaryTable:
        key = kv.capacity, kv.format.turned(kv.capacity)
        if key not in self._rotary:
            self._rotary[key] = self.config.rotary_table(kv, self._norm)
        return self._rotary[key]
