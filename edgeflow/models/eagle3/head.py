"""The EAGLE-3 draft head as a network: one decoder layer over features of the base and embeddings of tokens.

Source: Li et al., EAGLE-3, and the original implementation. The row at place t has the feature of token t and the
embedding of token t + 1, and its output proposes token t + 2. Operators are looked up as those of a Llama, by the
model_name `eagle3`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import DENSE, DenseKV
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.linear import Linear
from edgeflow.kernels.rope_write_kv import RotaryTable
from edgeflow.kernels.table.bind_linear import bind_linear
from edgeflow.kernels.table.dimensions import STAGES, stage_of
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.weights import Weight
from edgeflow.models.attention.operators import LayerAttention, Operators
from edgeflow.models.checkpoint import Weights
from edgeflow.models.eagle3.config import LAYER, OFFSETS, Eagle3Config, head_weights
from edgeflow.models.llama import LlamaDecoder
from edgeflow.models.vocabulary import Embedding, FloatEmbedding
from edgeflow_client.errors import CheckpointError

NAME = "eagle3"
"""The model_name by which its operators are looked up."""
ROWS = "decode"
"""The stage by which the products before and after the layer are looked up: most passes are drafts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageLayer:
    """The layer in one stage."""

    input_norm: Tensor
    hidden_norm: Tensor
    attention: LayerAttention
    post_norm: Tensor
    gate_up: Linear
    """[2F, E]: gate and up, fused; other weights are as published."""
    down: Linear
    operators: Operators


@dataclass(frozen=True, slots=True, kw_only=True)
class _FurtherTurned(DenseKV):
    """Dense slots whose rows are rotated by more positions than a slot has, since the base folds others into its
    memory.
    """

    positions: int = 0

    def turned(self, capacity: int) -> int:
        return max(capacity, self.positions)


class Eagle3Head:
    """A head over its base. weights: by their original names. embedding: the base's, or its own.

    targets [Vd]: int64, the base's token of each token of the head.
    """

    def __init__(
        self, config: Eagle3Config, weights: Weights, embedding: Embedding, targets: Tensor, table: OperatorTable
    ) -> None:
        self.config = config
        self.targets = targets
        self._embedding = embedding
        text = config.text
        width, inner = text.hidden_size, text.intermediate_size

        def linear(role: str, weight: Weight, bias: Tensor | None) -> Mapping[str, Linear]:
            return bind_linear(table, OperatorKey(op_name="linear", model_name=NAME, layer_role=role), weight, bias)

        self._norm = like = weights.take("norm.weight", width)

        def find(stage: str, key: OperatorKey) -> Any:
            return table.resolve(replace(key, model_name=NAME, stage=stage), like.device, like.dtype)

        operators = {stage: Operators.of(partial(find, stage), None) for stage in STAGES}
        self._shift_kv = find("prefill", OperatorKey(op_name="shift_kv"))
        self._fc = linear("", weights.linear("fc", width, config.feature_width), None)[ROWS]
        self._head = linear("head", weights.linear("lm_head", config.draft_vocabulary, width), None)[ROWS]
        below = weights.under(LAYER)
        attention = config.attention.of_stages(below.under("self_attn."), linear, operators)
        gate, up = (below.linear(f"mlp.{name}_proj", inner, width) for name in ("gate", "up"))
        gate_up = linear("gate_up", gate.cat([up]), None)
        down = linear("down", below.linear("mlp.down_proj", width, inner), None)
        input_norm = below.take("input_layernorm.weight", width)
        hidden_norm = below.take("hidden_norm.weight", width)
        post_norm = below.take("post_attention_layernorm.weight", width)
        self._layers = {
            stage: _StageLayer(
                input_norm=input_norm,
                hidden_norm=hidden_norm,
                attention=attention[stage],
                post_norm=post_norm,
                gate_up=gate_up[stage],
                down=down[stage],
                operators=operators[stage],
            )
            for stage in STAGES
        }
        self._rotary: dict[tuple[int, int], RotaryTable] = {}  # by the capacity of a store, and how far it turns

    @classmethod
    def read(
        cls,
        directory: Path,
        config: Eagle3Config,
        base: LlamaDecoder,
        dtype: torch.dtype,
        device: torch.device,
        table: OperatorTable | None = None,
    ) -> Eagle3Head:
        """Read the weights. config: as `read_eagle3` found it. table: by default the built-in one, with attention that
        reads nothing on the host unless the device is a CPU: a pass knows only on the device where its rows go.

        The embedding is the base's, by reference, where the head has none. CheckpointError for tensors that are missing
        or broken, and for a target id outside the base's vocabulary.
        """
        weights = head_weights(Path(directory), dtype, device)
        text, embedding = config.text, base.embedding
        if config.own_embedding:
            embedding = FloatEmbedding(weights.take("embed_tokens.weight", text.vocab_size, text.hidden_size))
        targets = _targets(config, weights, f"{directory}: ").to(device)
        return cls(config, weights, embedding, targets, table or _table_for(device, dtype))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype it computes in."""
        return self._norm.dtype

    def kv_slots(self, slots: int, capacity: int, turned: int = 0) -> KVSlots:
        """A store of its shape: one layer of dense slots.

        turned: by how many different positions RoPE rotates rows, where these are more than the capacity.
        """
        text, like = self.config.text, self._norm
        kv = KVSlots(
            layers=1,
            slots=slots,
            capacity=capacity,
            kv_heads=text.num_key_value_heads,
            head_dim=text.head_dim,
            dtype=like.dtype,
            device=like.device,
            shift=self._shift_kv,
            format=_FurtherTurned(positions=turned),
        )
        self._rotary_of(kv)
        return kv

    def project(self, features: Tensor) -> Tensor:
        """Features of the base, those of all taps side by side: [n, taps * E of the base] → [n, E]"""
        return self._fc(features)

    def embed(self, ids: Tensor) -> Tensor:
        """Tokens of the base's vocabulary: [n] → [n, E]"""
        return self._embedding(ids)

    def forward(self, feature: Tensor, embedded: Tensor, layout: PackedLayout, kv: KVSlots) -> Tensor:
        """The layer: feature [L_Q, E], embedded [L_Q, E] → [L_Q, E] before the final norm.

        feature: of the base, projected, or what this function returned for the row before. Neither is written over.
        """
        rows = self._rotary_of(kv).places(layout, kv.capacity)
        layer, store, eps = self._layers[stage_of(layout.lengths)], kv.layer(0), self.config.text.rms_norm_eps
        operators = layer.operators
        shared = operators.over(rows, layout, kv, ("",))
        normed = operators.input_norm(feature, layer.hidden_norm, eps)
        x = torch.cat([operators.input_norm(embedded, layer.input_norm, eps), normed], -1)
        residual = normed if self.config.norm_before_residual else feature.clone()  # sums replace it from here on
        q = layer.attention.write(x, shared, store)
        x = layer.attention.finish(shared.attend[""](q, store))
        x, residual = operators.add_post_norm(x, residual, layer.post_norm, eps)
        x = layer.down(operators.swiglu(layer.gate_up(x)))
        return residual.add_(x)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """Final norm, head and log-softmax: [n, E] → [n, Vd] float32, of tokens of the head's vocabulary."""
        normed = self._layers[ROWS].operators.final_norm(hidden, self._norm, self.config.text.rms_norm_eps)
        return self._head(normed).float().log_softmax(-1)

    def _rotary_of(self, kv: KVSlots) -> RotaryTable:
        key = kv.capacity, kv.format.turned(kv.capacity)
        if key not in self._rotary:
            self._rotary[key] = self.config.text.rotary_table(kv, self._norm)
        return self._rotary[key]


def _table_for(device: torch.device, dtype: torch.dtype) -> OperatorTable:
    table = built_in_table()
    if device.type == "cpu" or not table.reads_places(NAME, DENSE.name, Hardware.of(device), dtype):
        return table
    return table.forcing(packed_attention="masked")


def _targets(config: Eagle3Config, weights: Weights, where: str) -> Tensor:
    """The base's token of each token of the head: i + d2t[i], or i where the vocabularies are the same."""
    count, vocabulary = config.draft_vocabulary, config.text.vocab_size
    own = torch.arange(count)
    if count == vocabulary:
        return own
    offsets = weights.stored(OFFSETS)
    if offsets.shape != own.shape or offsets.dtype not in (torch.int64, torch.int32):
        raise CheckpointError(
            f"{where}{OFFSETS} must be {count} integers, got {list(offsets.shape)} of {offsets.dtype}"
        )
    targets = own + offsets
    wrong = ((targets < 0) | (targets >= vocabulary)).nonzero()
    if len(wrong):
        token = int(wrong[0])
        raise CheckpointError(
            f"{where}{OFFSETS}[{token}] makes token {token} of the head token {int(targets[token])} of the base, whose "
            f"vocab_size is {vocabulary}: copy the head again"
        )
    return targets
