"""The operators of static graphs, in the signatures of the operator table, and the table in which they serve.

They decompose into standard operators: no in-place writes of slots, no library's fused call. Their twins are the
references of the operators.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.packed_attention import Attend
from edgeflow.kernels.rope_write_kv import RowPlaces, rotated
from edgeflow.kernels.static.layout import StaticLayout
from edgeflow.kernels.static.store import StaticLayer
from edgeflow.kernels.table.implementations import REFERENCE, Implementation
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.kernels.varlen_attention import Sequences

STATIC = "static"


def rope_write_kv(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: StaticLayer) -> Tensor:
    """Rotated queries; keys and values enter the layer as results."""
    split = qkv.view(qkv.shape[0], heads + 2 * kv_heads, -1)
    turned = rotated(split[:, : heads + kv_heads], rows)
    layer.enter(turned[:, heads:], split[:, heads + kv_heads :])
    return turned[:, :heads]


def packed_attention(layout: PackedLayout, kv: KVSlots) -> Attend:  # noqa: ARG001 - the layout says all
    """All heads of a KV head in one product; hidden keys by -inf."""
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
    """Sequences of one length, as those of a tower's images are."""
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
REFERENCES = ("rms_norm", "add_rms_norm", "add_layer_norm", "swiglu")


def static_table() -> OperatorTable:
    """The table by which networks are loaded that will be traced."""
    static = {each.op_name: STATIC for each in IMPLEMENTATIONS}
    return built_in_table(*IMPLEMENTATIONS).forcing(linear="gemm", **static, **dict.fromkeys(REFERENCES, REFERENCE))
