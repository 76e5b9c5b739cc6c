"""The attention of a layer as a value, and the operators that a Llama calls in one stage of its passes.

A decoder knows what attention writes and reads, not how it is projected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from edgeflow.kernels.kv.formats import KVFormat
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.memory import ReadMemory
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.linear import Linear
from edgeflow.kernels.packed_attention import Attend, PackedAttention
from edgeflow.kernels.rope_write_kv import RopeWriteKV, RowPlaces
from edgeflow.kernels.row_operators import AddRmsNorm, GatedUnit, RmsNorm
from edgeflow.kernels.table.dimensions import KV_FORMATS, OVER_KV
from edgeflow.kernels.table.operator_table import OperatorKey
from edgeflow.kernels.weights import Weight
from edgeflow.models.checkpoint import Weights

CALLS = {
    "input_norm": ("rms_norm", "input"),
    "add_input_norm": ("add_rms_norm", "input"),
    "add_post_norm": ("add_rms_norm", "post_attention"),
    "query_norm": ("rms_norm", "query"),
    "key_norm": ("rms_norm", "key"),
    "final_norm": ("rms_norm", "final"),
    "swiglu": ("swiglu", "mlp"),
    "read_memory": ("read_memory", "self_attention"),
}
"""op_name and layer_role of each call that is the same for all KV formats."""


@dataclass(frozen=True, slots=True)
class PassOperators:
    """The part of a pass that its layers share: the places of its rows, and the functions that write KV and attend.

    Both functions take a layer of the store.
    """

    rows: RowPlaces
    write: Callable[..., Tensor]
    attend: Mapping[str, Callable[..., Tensor]]
    """The attention of each kind of layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """The functions that serve a stage of this model's passes on its device."""

    input_norm: RmsNorm
    add_input_norm: AddRmsNorm
    add_post_norm: AddRmsNorm
    query_norm: RmsNorm
    key_norm: RmsNorm
    final_norm: RmsNorm
    swiglu: GatedUnit
    read_memory: ReadMemory
    rope_write_kv: Mapping[str, RopeWriteKV]
    """The operator of each KV format, by its name."""
    packed_attention: Mapping[str, PackedAttention]
    """The operator of each KV format, by its name."""

    @classmethod
    def of(cls, find: Callable[[OperatorKey], Any], attention: PackedAttention | None) -> Operators:
        """find: looks an operator up. attention: serves instead of what is found, where given."""
        found = {name: find(OperatorKey(op_name=op_name, layer_role=role)) for name, (op_name, role) in CALLS.items()}
        for op_name in OVER_KV:
            keys = {kv: OperatorKey(op_name=op_name, layer_role="self_attention", kv=kv) for kv in KV_FORMATS}
            found[op_name] = {kv: find(key) for kv, key in keys.items()}
        if attention is not None:
            found["packed_attention"] = dict.fromkeys(KV_FORMATS, attention)
        return cls(**found)

    def over(self, rows: RowPlaces, layout: PackedLayout, kv: KVSlots, kinds: Iterable[str]) -> PassOperators:
        """A pass over a store, with the operators of its format. kinds: of the model's layers, each once."""
        name = kv.format.name
        attend = {kind: self.packed_attention[name](layout.of_kind(kind), kv) for kind in kinds}
        if any(layout.gated):
            attend = {kind: _with_memory(each, self.read_memory, layout) for kind, each in attend.items()}
        return PassOperators(rows, self.rope_write_kv[name], attend)


def _with_memory(attend: Attend, read: ReadMemory, layout: PackedLayout) -> Attend:
    """Attention of a pass, some rows of which read the memory of their slots."""
    return lambda q, layer: read(q, attend(q, layer), layer, layout)


BindLinear = Callable[[str, Weight, "Tensor | None"], Mapping[str, Linear]]
"""(role, weight, bias) → the linear of each stage"""


class LayerAttention(Protocol):
    """One layer in one stage: the computations before and after attention over its slots."""

    def write(self, x: Tensor, shared: PassOperators, store: Any) -> Tensor:
        """Normed rows [L_Q, E] → the queries [L_Q, H, D] to attend with; the slots hold the rows' KV afterwards."""
        ...

    def finish(self, attended: Tensor) -> Tensor:
        """Attended rows [n, H, D] → [n, E]. They may be some of the rows that were written."""
        ...


class AttentionForm(Protocol):
    """The form of attention that all layers of a model have."""

    @property
    def kv_format(self) -> KVFormat:
        """The format in which slots hold the model's own numbers."""
        ...

    @property
    def rotary(self) -> int:
        """The width of the part of a head that is rotated by the position."""
        ...

    @property
    def linears(self) -> Mapping[str, tuple[int, int]]:
        """Outputs and inputs of each projection that is a linear, by its published name."""
        ...

    @property
    def absorbed(self) -> Mapping[str, tuple[int, int]]:
        """Outputs and inputs of each projection that is held in floats and multiplied head by head, by its name."""
        ...

    @property
    def row_numbers(self) -> int:
        """The number of intermediate values of a row, all at once."""
        ...

    def of_stages(
        self, weights: Weights, linear: BindLinear, operators: Mapping[str, Operators]
    ) -> Mapping[str, LayerAttention]:
        """A layer's attention in each stage. weights: those below `model.layers.<index>.self_attn.`"""
        ...
