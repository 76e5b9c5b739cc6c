"""The problems of a slot's memory: reading it, and folding a segment into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from edgeflow.kernels.kv.formats import MemoryRules
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.memory import MemoryLayer
from edgeflow.kernels.trials.cases import Case, Heads, Numbers, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class GateTensors:
    """A gate of one layer (kernels/kv/memory.Gate)."""

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    g: Tensor


def read_memory(lengths: Sequence[int], heads: Heads, *, hidden: int, by_head: bool = False) -> Case:
    """Spans of which every other one is gated, each in its own slot. hidden: h of the gate. by_head: an MLP each."""

    def build(make: Numbers) -> Problem:
        layout = PackedLayout.of([Span(slot, 0, length) for slot, length in enumerate(lengths)], make.device)
        layout = replace(layout, gated=tuple(slot % 2 == 0 for slot in range(len(lengths))))
        layer = _memory(make, heads, slots=len(lengths), places=1, hidden=hidden, by_head=by_head)
        rows = sum(lengths), heads.query, heads.width
        arguments = make.normal(*rows), make.normal(*rows), layer, layout
        return Problem(arguments, lambda result: (result,), cold_bytes=layer.matrices.nbytes)

    return Case(op_name="read_memory", build=build)


def fold_memory(places: int, heads: Heads, activation: str = "elu_plus_one") -> Case:
    """A segment in the middle of a slot; the other slot keeps its memory."""

    def build(make: Numbers) -> Problem:
        layer = _memory(make, heads, slots=2, places=places + 3, hidden=1, activation=activation)
        return Problem((layer, 1, 2, places + 2), lambda _: (layer.matrices, layer.norms), cold_bytes=layer.keys.nbytes)

    return Case(op_name="fold_memory", build=build)


def _memory(
    make: Numbers,
    heads: Heads,
    *,
    slots: int,
    places: int,
    hidden: int,
    by_head: bool = False,
    activation: str = "elu_plus_one",
) -> MemoryLayer:
    """A layer whose memories hold something, with a gate of random numbers."""
    count, shape = heads.query if by_head else 1, (slots, places, heads.kv, heads.width)
    gate = GateTensors(
        w1=make.normal(count, hidden, heads.width),
        b1=make.normal(count, hidden),
        w2=make.normal(count, heads.width, hidden),
        b2=make.normal(count, heads.width),
        g=make.normal(heads.query, heads.width),
    )
    return MemoryLayer(
        keys=make.normal(*shape),
        values=make.normal(*shape),
        matrices=make.normal(slots, heads.kv, heads.width, heads.width).float(),
        norms=make.normal(slots, heads.kv, heads.width).float().abs() + 1,
        gate=gate,
        rules=MemoryRules(sink=0, segment=1, activation=activation),
    )
