"""Shape signatures: the sizes of a call as text, `m=512|e=4096`, by which entries of the table tell calls apart.

m: rows (of varlen_attention, of the longest sequence), n: outputs of a linear, or sequences, e: hidden size, or inputs
of a linear, f: intermediate size, v: vocabulary, t: positions of a slot, h: heads, kv: KV heads, d: head width (of
rope_write_kv, its rotated part). m and t change from call to call and count as the next power of two.
kernels/table/dimensions.py has the long names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.memory import MemoryLayer
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.rope_write_kv import RowPlaces
from edgeflow.kernels.table.dimensions import signature
from edgeflow.kernels.varlen_attention import Sequences
from edgeflow.kernels.weights import Weight

Signed = tuple[str, str]
"""(stage, shape signature); the stage is "" where the arguments do not show it"""


def stage_of(lengths: Sequence[int]) -> str:
    """prefill: longer spans alone; decode: single rows alone; packed: both."""
    kinds = {length > 1 for length in lengths}
    return "packed" if len(kinds) > 1 else "prefill" if kinds == {True} else "decode"


def _norm(x: Tensor, *_: Any) -> Signed:
    if x.dim() == 3:
        return "", signature(m=x.shape[0], h=x.shape[1], d=x.shape[2])
    return "", signature(m=x.shape[0], e=x.shape[1])


def _swiglu(gate_up: Tensor) -> Signed:
    return "", signature(m=gate_up.shape[0], f=gate_up.shape[1] // 2)


def _greedy(logits: Tensor, first: int, stop: int) -> Signed:
    return "", signature(m=logits.shape[0], v=stop - first)


def _shift(data: Tensor, *_: Any) -> Signed:
    return "", signature(t=data.shape[3], kv=data.shape[4], d=data.shape[5])


def _rope(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, *_: Any) -> Signed:
    return "", signature(m=qkv.shape[0], h=heads, kv=kv_heads, d=rows.cos.shape[-1])


def _attention(layout: PackedLayout, kv: KVSlots) -> Signed:
    sizes = signature(m=len(layout.row_slot), t=layout.reach, kv=kv.kv_heads, d=kv.head_dim)
    return stage_of(layout.lengths), sizes


def _linear(weight: Weight, bias: Tensor | None, rows: int) -> Signed:  # noqa: ARG001
    return "", signature(m=rows, n=weight.shape[0], e=weight.shape[1])


def _varlen(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences) -> Signed:  # noqa: ARG001
    return "", signature(m=sequences.longest, n=len(sequences.lengths), h=q.shape[1], d=q.shape[2])


def _read_memory(q: Tensor, attended: Tensor, layer: MemoryLayer, layout: PackedLayout) -> Signed:  # noqa: ARG001
    rows, heads, width = q.shape
    return stage_of(layout.lengths), signature(m=rows, h=heads, kv=layer.norms.shape[1], d=width)


def _fold_memory(layer: MemoryLayer, slot: int, first: int, stop: int) -> Signed:  # noqa: ARG001
    return "", signature(m=stop - first, kv=layer.norms.shape[1], d=layer.norms.shape[2])


SIGNATURES: dict[str, Callable[..., Signed]] = {
    "rms_norm": _norm,
    "add_rms_norm": _norm,
    "add_layer_norm": _norm,
    "swiglu": _swiglu,
    "greedy": _greedy,
    "linear": _linear,
    "shift_kv": _shift,
    "shift_kv_chain": _shift,
    "rope_write_kv": _rope,
    "packed_attention": _attention,
    "varlen_attention": _varlen,
    "read_memory": _read_memory,
    "fold_memory": _fold_memory,
}
"""The function that signs a call of each operator by its arguments; of `linear` also by the rows it is made for."""
