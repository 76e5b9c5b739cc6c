"""The problems of a slot's memory: reading it, and folding a segment into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import MemoryRules
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.memory import GateLayer, MemoryLayer
from edgeflow.lab.trials.cases import Heads, Numbers, Problem, TrialCase

_FAR_BELOW: Final = -4.0
"""Queries at which exp(x) - 1 in 16 bits is -1, or nearly so."""
_OPPOSITE: Final = 25.0
"""Rows of a memory are this far above and below 0 in turns: their sums nearly cancel."""


def read_memory(lengths: Sequence[int], heads: Heads, *, hidden: int, by_head: bool = False) -> TrialCase:
    """Spans in slots in reverse order, every other one gated. hidden: h of the gate. by_head: an MLP for each head."""

    def build(make: Numbers) -> Problem:
        layer = _memory(make, heads, slots=len(lengths), places=1, hidden=hidden, by_head=by_head)
        return _reading(make, lengths, heads, make.normal(sum(lengths), heads.query, heads.width), layer)

    return TrialCase(op_name="read_memory", build=build)


def read_in_float32(lengths: Sequence[int], heads: Heads) -> TrialCase:
    """Queries and memories of which an activation, a sum or a product in 16 bits would lose most."""

    def build(make: Numbers) -> Problem:
        layer = _memory(make, heads, slots=len(lengths), places=1, hidden=24)
        signs = torch.ones_like(layer.norms).cumsum(-1) % 2 * 2 - 1  # of each key feature
        layer = replace(layer, matrices=layer.matrices / 3 + signs[..., None] * _OPPOSITE)
        queries = make.given(make.normal(sum(lengths), heads.query, heads.width) / 16 + _FAR_BELOW)
        return _reading(make, lengths, heads, queries, layer)

    return TrialCase(op_name="read_memory", build=build)


def read_empty(lengths: Sequence[int], heads: Heads) -> TrialCase:
    """Memories of zeros under an activation that gives zeros: what is read is 0, not 0 / 0."""

    def build(make: Numbers) -> Problem:
        layer = _memory(make, heads, slots=len(lengths), places=1, hidden=24, activation="relu")
        layer = replace(layer, matrices=layer.matrices * 0, norms=layer.norms * 0)
        return _reading(make, lengths, heads, make.normal(sum(lengths), heads.query, heads.width), layer)

    return TrialCase(op_name="read_memory", build=build)


def fold_memory(places: int, heads: Heads, activation: str = "elu_plus_one") -> TrialCase:
    """A segment in the middle of a slot; the other slot keeps its memory."""

    def build(make: Numbers) -> Problem:
        layer = _memory(make, heads, slots=2, places=places + 3, hidden=1, activation=activation)
        return Problem((layer, 1, 2, places + 2), lambda _: (layer.matrices, layer.norms), cold_bytes=layer.keys.nbytes)

    return TrialCase(op_name="fold_memory", build=build)


def _reading(make: Numbers, lengths: Sequence[int], heads: Heads, queries: Tensor, layer: MemoryLayer) -> Problem:
    """Every other span is gated, from the first on; the first reads the last slot."""
    count = len(lengths)
    layout = PackedLayout.of([Span(count - 1 - span, 0, length) for span, length in enumerate(lengths)], make.device)
    layout = replace(layout, gated=tuple(span % 2 == 0 for span in range(count)))
    attended = make.normal(sum(lengths), heads.query, heads.width)
    return Problem((queries, attended, layer, layout), lambda result: (result,), cold_bytes=layer.matrices.nbytes)


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
    gate = GateLayer(
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
