"""A KV format with a compressed memory: what leaves a slot's places stays as one matrix per head (EdgeInfinite, 3.1.2).

A slot holds the pairs of a sequence's first tokens (the sink), of the newest ones, and per KV head a matrix M and a
vector z, in float32 whatever the model computes in. Its memory does not grow with the sequence. The operators fold a
segment into it, and mix what it holds into attention (equations 5 to 9): everything between the activation of keys and
queries and the division is float32; the gate computes in the dtype of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.kv.formats import DENSE, KVShape, KVTensor, MemoryRules, Pair, Places
from edgeflow.kernels.kv.layout import PackedLayout

Activation = Callable[[Tensor], Tensor]


def elu_plus_one(x: Tensor) -> Tensor:
    """x + 1 above 0, exp(x) below."""
    return F.elu(x) + 1


ACTIVATIONS: Mapping[str, Activation] = {"elu_plus_one": elu_plus_one, "relu": F.relu}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GateLayer:
    """The memory gate of one layer: an MLP of hidden width h, and how much of what it gives is mixed in.

    w1 [1 or H, h, D]; b1 [1 or H, h]; w2 [1 or H, D, h]; b2 [1 or H, D]; g [1 or H, D].

    A leading 1 stands for all heads; rows of w1 and w2 are outputs.
    """

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    g: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a gate, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryLayer:
    """keys, values [S, T, KH, D] in the dtype of the model; matrices [S, KH, D, D], norms [S, KH, D] in float32.

    The first D of a matrix is the key's feature, the second the value's channel.
    """

    keys: Tensor
    values: Tensor
    matrices: Tensor
    norms: Tensor
    gate: GateLayer
    rules: MemoryRules

    def read(self, slots: int | Tensor, places: Places, rows: int | Tensor) -> Pair:  # noqa: ARG002 - alike for all
        return self.keys[slots, places], self.values[slots, places]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryKV:
    """Dense pairs with a memory.

    Its places are written and attended by the operators of dense slots.
    """

    memory: MemoryRules
    """How memories are folded and read."""
    gates: Sequence[GateLayer]
    """The gate of each layer."""
    positions: int
    """The longest sequence, in tokens."""
    name: str = DENSE.name

    def longest(self, capacity: int) -> int:  # noqa: ARG002 - alike for all
        return self.positions

    def turned(self, capacity: int) -> int:
        return self.positions if self.memory.absolute else capacity

    def tensors(self, shape: KVShape) -> tuple[KVTensor, ...]:
        width, once = shape.head_dim, shape.capacity
        matrices, norms = (
            KVTensor(
                layers=shape.layers, kinds=1, heads=shape.kv_heads, width=size, dtype=torch.float32, positions=once
            )
            for size in (width * width, width)
        )
        return *DENSE.tensors(shape), matrices, norms

    def layer(self, tensors: tuple[Tensor, ...], index: int) -> MemoryLayer:
        data, matrices, norms = tensors
        (keys, values), norms = data[index].unbind(), norms[index, 0, :, 0]
        squares = matrices[index, 0, :, 0].view(*norms.shape, norms.shape[-1])
        return MemoryLayer(
            keys=keys, values=values, matrices=squares, norms=norms, gate=self.gates[index], rules=self.memory
        )

    def reusable(self, known: int) -> int:  # noqa: ARG002 - alike for all
        """0: how many rows can be reused depends on the whole prompt (scheduler/folding.py)."""
        return 0


def memory_bytes(kv_heads: int, head_dim: int) -> int:
    """Bytes of M and z of one slot in one layer: KH * D * (D + 1) numbers of 4 bytes."""
    return kv_heads * head_dim * (head_dim + 1) * torch.float32.itemsize


ReadMemory = Callable[[Tensor, Tensor, MemoryLayer, PackedLayout], Tensor]
"""(q [L_Q, H, D], what attention gave [L_Q, H, D], layer, layout) → the mixed rows. Rows of spans that are not gated
stay as they are."""
FoldMemory = Callable[[MemoryLayer, int, int, int], None]
"""(layer, slot, first place, stop): these pairs are added to the memory of the slot."""


def read_reference(q: Tensor, attended: Tensor, layer: MemoryLayer, layout: PackedLayout) -> Tensor:
    """Row by row and head by head."""
    out = attended.clone()
    rules, group = layer.rules, q.shape[1] // layer.norms.shape[1]
    sigma = ACTIVATIONS[rules.activation]
    slots = layout.row_slot.tolist()
    for rows, gated in _spans(layout):
        for row in range(rows.start, rows.stop) if gated else ():
            for head in range(q.shape[1]):
                feature = sigma(q[row, head].float())
                matrix, norm = layer.matrices[slots[row], head // group], layer.norms[slots[row], head // group]
                read = (feature @ matrix) / (feature @ norm).clamp(min=rules.eps)
                gate, own = layer.gate, min(head, len(layer.gate.w1) - 1)
                inner = torch.relu(gate.w1[own] @ read.to(q.dtype) + gate.b1[own])
                mixed_in = gate.w2[own] @ inner + gate.b2[own]
                share = torch.sigmoid(gate.g[min(head, len(gate.g) - 1)])
                out[row, head] = share * mixed_in + (1 - share) * attended[row, head]
    return out


def read_batched(q: Tensor, attended: Tensor, layer: MemoryLayer, layout: PackedLayout) -> Tensor:
    """Span by span; slots stay on the device."""
    parts = []
    for rows, gated in _spans(layout):
        slot = layout.row_slot[rows.start : rows.start + 1]
        parts.append(_read_span(q[rows], attended[rows], layer, slot) if gated else attended[rows])
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def fold_reference(layer: MemoryLayer, slot: int, first: int, stop: int) -> None:
    """Position by position."""
    sigma = ACTIVATIONS[layer.rules.activation]
    for place in range(first, stop):
        feature, value = sigma(layer.keys[slot, place].float()), layer.values[slot, place].float()
        layer.matrices[slot] += feature[:, :, None] * value[:, None, :]
        layer.norms[slot] += feature


def fold_batched(layer: MemoryLayer, slot: int, first: int, stop: int) -> None:
    """One product per head over all positions."""
    feature = ACTIVATIONS[layer.rules.activation](layer.keys[slot, first:stop].float()).transpose(0, 1)  # [KH, n, D]
    value = layer.values[slot, first:stop].float().transpose(0, 1)
    layer.matrices[slot].baddbmm_(feature.transpose(1, 2), value)
    layer.norms[slot] += feature.sum(1)


def _read_span(q: Tensor, attended: Tensor, layer: MemoryLayer, slot: Tensor) -> Tensor:
    """The rows of one span. slot [1]: on the device."""
    matrix, norm = layer.matrices.index_select(0, slot)[0], layer.norms.index_select(0, slot)[0]
    kv_heads = len(norm)
    grouped = q.reshape(len(q), kv_heads, -1, q.shape[-1]).transpose(0, 1)  # [KH, n, H / KH, D]
    feature = ACTIVATIONS[layer.rules.activation](grouped.flatten(1, 2).float())
    sums = torch.bmm(feature, matrix)
    read = sums / torch.bmm(feature, norm[..., None]).clamp(min=layer.rules.eps)
    rows = read.to(q.dtype).view(grouped.shape).transpose(0, 1).flatten(1, 2)  # [n, H, D]
    share = torch.sigmoid(layer.gate.g)
    return torch.lerp(attended, _mlp(rows, layer.gate), share.expand_as(attended))


def _mlp(rows: Tensor, gate: GateLayer) -> Tensor:
    """The MLP of each head over what it read: [n, H, D] → [n, H, D]"""
    if len(gate.w1) == 1:
        inner = torch.relu(torch.addmm(gate.b1[0], rows.flatten(0, 1), gate.w1[0].T))
        return torch.addmm(gate.b2[0], inner, gate.w2[0].T).view(rows.shape)
    by_head = rows.transpose(0, 1)
    inner = torch.relu(torch.baddbmm(gate.b1[:, None], by_head, gate.w1.transpose(1, 2)))
    return torch.baddbmm(gate.b2[:, None], inner, gate.w2.transpose(1, 2)).transpose(0, 1)


def _spans(layout: PackedLayout) -> Iterator[tuple[slice, bool]]:
    """The rows of each span, and whether they read the memory."""
    first = 0
    for length, gated in zip(layout.lengths, layout.gated, strict=True):
        yield slice(first, first + length), gated
        first += length
