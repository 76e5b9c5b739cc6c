"""The operators that a Llama calls, by name and role, in one stage of its passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from edgeflow.kernels.int8_kv import PackedAttentionInt8, RopeWriteInt8
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.layout import PackedLayout
from edgeflow.kernels.packed_attention import PackedAttention
from edgeflow.kernels.rms_norm import AddRmsNorm, RmsNorm
from edgeflow.kernels.rope_write_kv import RopeWriteKV, RowPlaces
from edgeflow.kernels.swiglu import SwiGLU
from edgeflow.kernels.table import OperatorKey

CALLS = {
    "input_norm": ("rms_norm", "input"),
    "add_input_norm": ("add_rms_norm", "input"),
    "add_post_norm": ("add_rms_norm", "post_attention"),
    "query_norm": ("rms_norm", "query"),
    "key_norm": ("rms_norm", "key"),
    "final_norm": ("rms_norm", "final"),
    "swiglu": ("swiglu", "mlp"),
    "rope_write_kv": ("rope_write_kv", "self_attention"),
    "packed_attention": ("packed_attention", "self_attention"),
    "rope_write_kv_int8": ("rope_write_kv_int8", "self_attention"),
    "packed_attention_int8": ("packed_attention_int8", "self_attention"),
}
"""op_name and layer_role of each call."""


@dataclass(frozen=True, slots=True)
class PassOperators:
    """Shared by all layers of a pass: the places of its rows, and the functions that write KV and attend. Both take a
    layer's store."""

    rows: RowPlaces
    write: Callable[..., Tensor]
    attend: Callable[..., Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """The functions that serve a stage of this model's passes on its device."""

    input_norm: RmsNorm
    add_input_norm: AddRmsNorm
    add_post_norm: AddRmsNorm
    query_norm: RmsNorm
    key_norm: RmsNorm
    final_norm: RmsNorm
    swiglu: SwiGLU
    rope_write_kv: RopeWriteKV
    packed_attention: PackedAttention
    rope_write_kv_int8: RopeWriteInt8
    packed_attention_int8: PackedAttentionInt8

    @classmethod
    def of(cls, find: Callable[[OperatorKey], Any], attention: PackedAttention | None) -> Operators:
        """find: looks an operator up. attention: serves instead of what is found, where given."""
        found = {name: find(OperatorKey(op_name=op_name, layer_role=role)) for name, (op_name, role) in CALLS.items()}
        if attention is not None:
            found["packed_attention"] = attention
        return cls(**found)

    def over(self, rows: RowPlaces, layout: PackedLayout, kv: KVSlots) -> PassOperators:
        """A pass over this kind of store."""
        if kv.int8:
            return PassOperators(rows, self.rope_write_kv_int8, self.packed_attention_int8(layout, kv))
        return PassOperators(rows, self.rope_write_kv, self.packed_attention(layout, kv))
