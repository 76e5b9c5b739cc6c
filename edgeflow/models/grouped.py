"""Two decoder stacks in shared passes: prefix rows use one stack's weights, suffix rows the other's.

Both write their keys and values to the same slots, and a suffix row attends over the prefix in its slot and over its
own segment (π0, SmolVLA: a vision-language model and its action expert). Only the number of layers, the heads and their
width must agree. Where a layer is of kind `CROSS`, suffix rows see only the prefix, through projections of its keys
and values that are computed once per frame and replace them in the slot.

Knows nothing of schedulers: the rows of a pass, and what they see, are a `GroupLayout`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import DENSE, DenseLayer
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.linear import Linear
from edgeflow.kernels.packed_attention import Attend, PackedAttention
from edgeflow.kernels.rope_write_kv import RopeWriteKV, RotaryTable, RowPlaces, rotated
from edgeflow.kernels.row_operators import GatedUnit
from edgeflow.kernels.table.bind_linear import bind_linear_stage
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable
from edgeflow.kernels.weights import FloatWeight, Weight
from edgeflow.models.checkpoint import Weights
from edgeflow.models.stack_norms import ResidualRows, RowTimes, StackNorms, StackSizes

JOINT, CROSS = "joint", "cross"
STAGE = "prefill"
"""The stage by which operators are looked up: both groups run tens to hundreds of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSizes:
    """The sizes in which both stacks agree."""

    heads: int
    """H, query heads."""
    kv_heads: int
    """KH, key-value heads."""
    head_dim: int
    """D, the width of a head."""
    kinds: tuple[str, ...]
    """The kind of each layer, JOINT or CROSS."""
    theta: float = 10_000.0
    """The base of RoPE."""

    @property
    def q_width(self) -> int:
        """H * D"""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """KH * D"""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLayout:
    """The rows of a pass, prefix rows first."""

    joint: PackedLayout
    """The rows as layers of kind JOINT see them."""
    cross: PackedLayout | None
    """The rows as layers of kind CROSS see them, with their RoPE positions; None where the model has no such layer."""
    prefixes: int
    """The number of prefix segments."""
    prefix_rows: int
    """The number of prefix rows."""

    def of_kind(self, kind: str) -> PackedLayout:
        """The layout of layers of one kind."""
        if kind == JOINT:
            return self.joint
        if self.cross is None:
            raise ValueError("this pass has no layout for layers that only read the prefix")
        return self.cross

    def suffix(self, kind: str) -> PackedLayout:
        """Only suffix rows, over everything that the pass has written; the layout itself where there are no others."""
        whole, first = self.of_kind(kind), self.prefix_rows
        if not first:
            return whole
        return replace(
            whole,
            lengths=whole.lengths[self.prefixes :],
            row_slot=_aligned(whole.row_slot[first:]),
            row_position=_aligned(whole.row_position[first:]),
            rope_position=_aligned(whole.rope_position[:, first:]),
            sampled_rows=whole.sampled_rows[:0],
            samples=None,
            places=None if whole.places is None else whole.places[self.prefixes :],
            visibility=whole.visibility and whole.visibility.of_rows(slice(first, None)),
        ).sharing(whole, "suffix")


def _aligned(rows: Tensor) -> Tensor:
    """The same numbers from a multiple of 16 bytes on, as PackedLayout has them."""
    return rows if rows.storage_offset() * rows.element_size() % 16 == 0 else rows.clone()


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupedLayer:
    """Weights of one layer."""

    qkv: Linear
    """[(H + 2 KH) D, E]; for suffix rows in a CROSS layer only queries [H D, E]."""
    output: Linear
    gate_up: Linear
    """Gate and up, fused; `output` and `down` are as published."""
    down: Linear


@dataclass(frozen=True, slots=True)
class _Stack:
    """One stack with the operators that serve it."""

    layers: tuple[_GroupedLayer, ...]
    norms: StackNorms
    gated: GatedUnit

    def mlp(self, index: int, rows: ResidualRows) -> None:
        layer = self.layers[index]
        rows.add(layer.down(self.gated(layer.gate_up(rows.normed()))))


class GroupedDecoder:
    """weights: those of each stack, names as published below it (layers.0.self_attn.q_proj.weight, …, norm.weight).

    name: the model_name by which operators are looked up. prefix_width: E, of prefix rows.
    """

    def __init__(
        self,
        heads: HeadSizes,
        prefix: tuple[StackSizes, Weights],
        suffix: tuple[StackSizes, Weights],
        *,
        name: str,
        table: OperatorTable,
    ) -> None:
        self.heads = heads
        self.name = name
        self._table = table
        self.prefix_width = prefix[0].width
        self.dtype, self.device = prefix[1].dtype, prefix[1].device
        self._prefix = self._stack(*prefix, own=False)
        self._suffix = self._stack(*suffix, own=True)
        self._projections = [
            self._projection(suffix[1].under(f"layers.{index}.")) if kind == CROSS else None
            for index, kind in enumerate(heads.kinds)
        ]
        self._write: RopeWriteKV = self._find("rope_write_kv", "self_attention")
        self.attention: PackedAttention = self._find("packed_attention", "self_attention")
        self._rotary: dict[int, RotaryTable] = {}  # by the capacity of a store

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its layers, each once."""
        return tuple(dict.fromkeys(self.heads.kinds))

    def kv_slots(self, slots: int, capacity: int) -> KVSlots:
        """A store of this model's shape."""
        heads = self.heads
        return KVSlots(
            layers=len(heads.kinds),
            slots=slots,
            capacity=capacity,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            dtype=self.dtype,
            device=self.device,
            shift=self._find("shift_kv", "prefix"),
        )

    def modulation(self, conditions: Tensor) -> Tensor:
        """The numbers of the suffix's adaptive norms for each of m conditions [m, E'], for `RowTimes`."""
        return self._suffix.norms.modulation(conditions)

    def forward(
        self, prefix: Tensor, suffix: Tensor, layout: GroupLayout, kv: KVSlots, condition: RowTimes | None = None
    ) -> Tensor:
        """Prefix rows [L_P, E] and suffix rows [L_S, E'] → suffix rows after the final norm [L_S, E']. Both are given
        away: they may be overwritten.

        The prefix's keys and values are in their slots then. In the last layer nobody reads more of it, so no more is
        computed.
        """
        return self.run(prefix, suffix, layout, kv, condition, norm_prefix=False)[1]

    def run(
        self,
        prefix: Tensor,
        suffix: Tensor,
        layout: GroupLayout,
        kv: KVSlots,
        condition: RowTimes | None,
        norm_prefix: bool,
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, after the prefix rows. norm_prefix: these after their final norm too, for comparisons."""
        shared = _PassPlaces(self, layout, kv)
        rows = ResidualRows(self._prefix.norms, prefix, None), ResidualRows(self._suffix.norms, suffix, condition)
        last = len(self.heads.kinds) - 1
        for index in range(len(self.heads.kinds)):
            ends = index == last and not norm_prefix
            self._attend(index, rows, shared, kv.layer(index), ends=ends)
            for group, stack in zip(rows, (self._prefix, self._suffix), strict=True):
                if group.count and not (ends and group is rows[0]):
                    stack.mlp(index, group)
        prefix_out = rows[0].normed() if norm_prefix and rows[0].count else prefix[:0]
        return prefix_out, rows[1].normed() if rows[1].count else suffix

    def _attend(
        self, index: int, rows: tuple[ResidualRows, ResidualRows], shared: _PassPlaces, store: DenseLayer, *, ends: bool
    ) -> None:
        """One attention sub-layer of both groups. ends: the prefix is done when its keys and values are written."""
        kind, prefix_rows = self.heads.kinds[index], rows[0].count
        stacks = self._prefix.layers[index], self._suffix.layers[index]
        projected = [
            layer.qkv(group.normed()) if group.count else None for layer, group in zip(stacks, rows, strict=True)
        ]
        q = self._placed(kind, projected, shared, store)
        if ends:
            q = q[prefix_rows:]
        attended = (shared.attend(kind, ends)(q, store) if len(q) else q).flatten(1)
        projection = self._projections[index]
        if projection is not None and prefix_rows:
            store.project(*projection, shared.prefix.flat)
        if not ends and prefix_rows:
            rows[0].add(stacks[0].output(attended[:prefix_rows]))
            attended = attended[prefix_rows:]
        if rows[1].count:
            rows[1].add(stacks[1].output(attended))

    def _placed(self, kind: str, projected: list[Tensor | None], shared: _PassPlaces, store: DenseLayer) -> Tensor:
        """Rotated queries of both groups [L_Q, H, D]; keys and values are written to the slots."""
        heads, kv_heads = self.heads.heads, self.heads.kv_heads
        given = [each for each in projected if each is not None]
        if kind == JOINT:
            return self._write(torch.cat(given) if len(given) > 1 else given[0], heads, kv_heads, shared.rows, store)
        prefix, suffix = projected
        parts = []
        if prefix is not None:
            parts.append(self._write(prefix, heads, kv_heads, shared.prefix, store))
        if suffix is not None:
            parts.append(rotated(suffix.view(len(suffix), heads, -1), shared.crossing))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _stack(self, sizes: StackSizes, weights: Weights, *, own: bool) -> _Stack:
        """own: the stack of suffix rows, whose CROSS layers have only queries."""
        names = [f"layers.{index}.{norm}" for index in range(len(self.heads.kinds)) for norm in _NORMS] + ["norm"]
        layers = tuple(
            self._layer(sizes, weights.under(f"layers.{index}."), queries_alone=own and kind == CROSS)
            for index, kind in enumerate(self.heads.kinds)
        )
        gated = self._find("geglu" if sizes.gelu else "swiglu", "mlp")
        return _Stack(layers, StackNorms(sizes, weights, names, self._find), gated)

    def _layer(self, sizes: StackSizes, weights: Weights, *, queries_alone: bool) -> _GroupedLayer:
        heads, width = self.heads, sizes.width
        q = weights.linear("self_attn.q_proj", heads.q_width, width)
        if not queries_alone:
            q = q.cat([weights.linear(f"self_attn.{name}_proj", heads.kv_width, width) for name in "kv"])
        gate, up = (weights.linear(f"mlp.{name}_proj", sizes.inner, width) for name in ("gate", "up"))
        return _GroupedLayer(
            qkv=self._linear("qkv", q),
            output=self._linear("output", weights.linear("self_attn.o_proj", width, heads.q_width)),
            gate_up=self._linear("gate_up", gate.cat([up])),
            down=self._linear("down", weights.linear("mlp.down_proj", width, sizes.inner)),
        )

    def _projection(self, weights: Weights) -> tuple[Linear, Linear]:
        """Those of a prefix's keys and values, which suffix rows see in a CROSS layer."""
        width = self.heads.kv_width
        k, v = (FloatWeight(weights.take(f"self_attn.{name}_proj.weight", width, width)) for name in "kv")
        return self._linear("qkv", k), self._linear("qkv", v)

    def _linear(self, role: str, weight: Weight) -> Linear:
        key = OperatorKey(op_name="linear", model_name=self.name, layer_role=role, stage=STAGE)
        return bind_linear_stage(self._table, key, weight, None)

    def _find(self, op_name: str, role: str, dtype: torch.dtype | None = None) -> Any:
        key = OperatorKey(op_name=op_name, model_name=self.name, layer_role=role, stage=STAGE)
        return self._table.resolve(key, self.device, dtype or self.dtype)

    @property
    def reads_places(self) -> bool:
        """True when attention reads on the host where rows are placed."""
        return self._table.reads_places(self.name, DENSE.name, Hardware.of(self.device), self.dtype)

    def rotary(self, capacity: int) -> RotaryTable:
        """The rotations of the positions of slots of a capacity."""
        if capacity not in self._rotary:
            heads, like = self.heads, torch.empty(0, dtype=self.dtype, device=self.device)
            self._rotary[capacity] = RotaryTable.of(capacity, heads.head_dim, heads.theta, like)
        return self._rotary[capacity]


class _PassPlaces:
    """The part of a pass that its layers share: the places of its rows, and the attention of each kind of layer."""

    def __init__(self, decoder: GroupedDecoder, layout: GroupLayout, kv: KVSlots) -> None:
        rotary = decoder.rotary(kv.capacity)
        self.rows = rows = rotary.places(layout.joint, kv.capacity)
        self.crossing = rows if layout.cross is None else rotary.places(layout.suffix(CROSS), kv.capacity)
        self.prefix = first_spans(rows, layout.prefixes)
        self._decoder, self._layout, self._kv = decoder, layout, kv
        self._attend: dict[tuple[str, bool], Attend] = {}

    def attend(self, kind: str, suffix_alone: bool) -> Attend:
        """The attention of a kind of layer, made once. suffix_alone: only suffix rows attend."""
        key = kind, suffix_alone and len(self.prefix.flat) > 0
        if key not in self._attend:
            layout = self._layout.suffix(kind) if key[1] else self._layout.of_kind(kind)
            self._attend[key] = self._decoder.attention(layout, self._kv)
        return self._attend[key]


_NORMS = ("input_layernorm", "post_attention_layernorm")


def first_spans(rows: RowPlaces, spans: int) -> RowPlaces:
    """The rows of so many spans; the value itself where these are all."""
    lengths = rows.lengths[:spans]
    if lengths == rows.lengths:
        return rows
    count = sum(lengths)
    return RowPlaces(
        cos=rows.cos[:count],
        sin=rows.sin[:count],
        flat=rows.flat[:count],
        lengths=lengths,
    )
