"""Rows, keys and values, and operators of static graphs: networks loaded with `static_table` can be traced.

In a layout every sequence has the same number of rows; their positions and the keys they see are inputs. So are the
keys and values that enter; those of the rows are results. The operators decompose into standard ones: no in-place
writes of slots, no fused calls of a library. Their twins are the reference implementations of the operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import DENSE, Pair, Project
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.packed_attention import Attend
from edgeflow.kernels.rope_write_kv import RowPlaces, rotated
from edgeflow.kernels.table.implementations import REFERENCE, Implementation
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.kernels.varlen_attention import Sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticLayout(PackedLayout):
    """seen [B, R, n] bool: the keys that each row sees, first of the past, then of the rows; at least one."""

    seen_keys: Tensor
    batch: int
    """B."""

    @classmethod
    def over(cls, position: Tensor, seen: Tensor, sampled: Tensor | None = None) -> StaticLayout:
        """A layout with position [B, R] int64 for RoPE and sampled [n] int64, the rows of one sequence whose output is
        wanted, by default none.
        """
        batch, rows = position.shape
        flat = position.flatten()
        return cls(
            lengths=(rows,) * batch,
            reach=seen.shape[2],
            row_slot=flat,
            row_position=flat,
            rope_position=flat[None],
            sampled_rows=flat[:0] if sampled is None else sampled,
            seen_keys=seen,
            batch=batch,
        )

    def of_sampled_rows(self) -> StaticLayout:
        """The layout of the sampled rows, which all belong to one sequence."""
        sampled = self.sampled_rows
        position = self.row_position[sampled]
        return replace(
            self,
            lengths=(len(sampled),) * self.batch,
            row_slot=position,
            row_position=position,
            rope_position=position[None],
            seen_keys=self.seen_keys[:, sampled],
        )


class StaticLayer:
    """One layer.

    past: keys and values [B, T, KH, D] that enter; None if there are none. rows: those of the graph's rows [B R, KH,
    D], once they are computed; None in a layer whose rows see only the past.
    """

    def __init__(self, past: Pair | None) -> None:
        self.past = past
        self.rows: Pair | None = None

    def enter(self, keys: Tensor, values: Tensor) -> None:
        """Store keys and values of all rows [B R, KH, D]."""
        self.rows = keys, values

    def project(self, keys: Project, values: Project, flat: Tensor) -> None:  # noqa: ARG002 - all rows are meant
        """As in DenseLayer."""
        if self.rows is None:
            raise ValueError("no rows have entered this layer")
        k, v = self.rows
        self.rows = keys(k.flatten(1)).view_as(k), values(v.flatten(1)).view_as(v)

    def all(self, batch: int) -> Pair:
        """Keys and values that rows can see [B, T + R, KH, D]: the past, then the rows."""
        parts = [] if self.past is None else [self.past]
        if self.rows is not None:
            k, v = self.rows
            parts.append((k.reshape(batch, -1, *k.shape[1:]), v.reshape(batch, -1, *v.shape[1:])))
        if len(parts) == 1:
            return parts[0]
        (k, v), (more_k, more_v) = parts
        return torch.cat([k, more_k], dim=1), torch.cat([v, more_v], dim=1)


class StaticKV:
    """All layers of a graph. past: of each layer, as in StaticLayer. capacity: the number of positions for RoPE."""

    format = DENSE

    def __init__(self, past: Sequence[Pair | None], capacity: int) -> None:
        self.capacity = capacity
        self.layers = [StaticLayer(each) for each in past]

    def layer(self, index: int) -> StaticLayer:
        return self.layers[index]

    @property
    def slots(self) -> KVSlots:
        """This store in the type that networks expect: they read its format, capacity and layers."""
        return cast("KVSlots", self)


STATIC = "static"


def rope_write_kv(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: StaticLayer) -> Tensor:
    """Rotated queries; keys and values enter the layer as results."""
    split = qkv.view(qkv.shape[0], heads + 2 * kv_heads, -1)
    turned = rotated(split[:, : heads + kv_heads], rows)
    layer.enter(turned[:, heads:], split[:, heads + kv_heads :])
    return turned[:, :heads]


def packed_attention(layout: PackedLayout, kv: KVSlots) -> Attend:  # noqa: ARG001 - the layout says all
    """All heads of a KV head in one product; keys are hidden by -inf."""
    places = cast("StaticLayout", layout)
    hidden = ~places.seen_keys[:, None, None]  # [B, 1, 1, R, n]

    def attend(q: Tensor, layer: StaticLayer) -> Tensor:
        k, v = (each.transpose(1, 2) for each in layer.all(places.batch))  # [B, KH, n, D]
        batch, kv_heads, _, width = k.shape
        grouped = q.view(batch, -1, kv_heads, q.shape[1] // kv_heads, width).permute(0, 2, 3, 1, 4)
        shape = grouped.shape  # B, KH, H / KH, R, D
        scores = (grouped.flatten(2, 3) @ k.transpose(2, 3)) * width**-0.5
        shown = scores.view(*shape[:4], -1).masked_fill(hidden, float("-inf"))
        out = shown.softmax(-1).flatten(2, 3) @ v
        rows: Tensor = out.view(shape).permute(0, 3, 1, 2, 4).reshape(q.shape)
        return rows

    return attend


def varlen_attention(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """Attention over sequences of equal length, such as the images of a tower."""
    length = sequences.longest
    if set(sequences.lengths) != {length}:
        raise ValueError("a static graph has images of one size")
    a, b, c = (each.reshape(-1, length, *each.shape[1:]).transpose(1, 2) for each in (q, k, v))  # [N, H, L, D]
    scores = (a @ b.transpose(2, 3)) * q.shape[-1] ** -0.5
    out: Tensor = (scores.softmax(-1) @ c).transpose(1, 2).flatten(0, 1)
    return out


IMPLEMENTATIONS = (
    Implementation(op_name="rope_write_kv", impl_id=STATIC, function=rope_write_kv, kv="dense"),
    Implementation(op_name="packed_attention", impl_id=STATIC, function=packed_attention, kv="dense"),
    Implementation(op_name="varlen_attention", impl_id=STATIC, function=varlen_attention),
)
REFERENCES = ("rms_norm", "add_rms_norm", "add_layer_norm", "add_adaptive_norm", "swiglu")


def static_table() -> OperatorTable:
    """The operator table for networks that are to be traced."""
    static = {each.op_name: STATIC for each in IMPLEMENTATIONS}
    return built_in_table(*IMPLEMENTATIONS).forcing(linear="gemm", **static, **dict.fromkeys(REFERENCES, REFERENCE))
