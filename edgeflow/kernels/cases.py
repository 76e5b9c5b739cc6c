"""Problems on which implementations of an operator are compared and timed: the same for tests, tuner and GPU suite.

A `Case` makes its numbers from its seed on any device, prepares an implementation with them and gives what it
returns together with all memory it may write. Memory nobody may read is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from edgeflow.kernels.int8_kv import quantised
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.layout import PackedLayout, Span
from edgeflow.kernels.rope_write_kv import RotaryTable, RowPlaces

Call = Callable[[], tuple[Tensor, ...]]
Prepare = Callable[[Callable[..., Any]], Call]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Random tensors of a case: drawn in float32, rounded to `rounded`, given as `dtype`."""

    device: torch.device
    dtype: torch.dtype
    rounded: torch.dtype
    generator: torch.Generator

    @classmethod
    def of(cls, device: torch.device, dtype: torch.dtype, rounded: torch.dtype, seed: int) -> Numbers:
        return cls(device, dtype, rounded, torch.Generator().manual_seed(seed))

    def normal(self, *shape: int) -> Tensor:
        return self.given(torch.randn(shape, generator=self.generator))

    def given(self, values: Tensor) -> Tensor:
        return values.to(self.device).to(self.rounded).to(self.dtype)

    def poison(self, *shape: int) -> Tensor:
        return torch.full(shape, torch.nan, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Case:
    """One problem of one operator. stage: prefill, decode or packed where it has one; shape_sig: its sizes."""

    op_name: str
    shape_sig: str
    build: Callable[[Numbers], Prepare]
    stage: str = ""
    seed: int = 0

    def prepare(
        self, function: Callable[..., Any], device: torch.device, dtype: torch.dtype, rounded: torch.dtype | None = None
    ) -> Call:
        """What runs `function` once; the same numbers for every dtype that is computed in."""
        return self.build(Numbers.of(device, dtype, rounded or dtype, self.seed))(function)


@dataclass(frozen=True, slots=True)
class Heads:
    """H query heads, KH key-value heads, D numbers a head."""

    query: int
    kv: int
    width: int

    @property
    def text(self) -> str:
        return f"h={self.query}|kv={self.kv}|d={self.width}"


def size_class(count: int) -> int:
    """The power of two that a number of rows counts as: 1, 2, 4, .. at least `count`."""
    return 1 << max(count - 1, 0).bit_length()


def rms_norm(rows: int, width: int, eps: float = 1e-6) -> Case:
    def build(make: Numbers) -> Prepare:
        x, weight = make.normal(rows, width), make.normal(width)
        return lambda function: lambda: (function(x, weight, eps),)

    return Case("rms_norm", f"m={size_class(rows)}|e={width}", build)


def head_norm(rows: int, heads: Heads) -> Case:
    """Of each head, out of a wider projection."""

    def build(make: Numbers) -> Prepare:
        x = make.normal(rows, heads.query + 2 * heads.kv, heads.width)[:, : heads.query]
        weight = make.normal(heads.width)
        return lambda function: lambda: (function(x, weight, 1e-6),)

    return Case("rms_norm", f"m={size_class(rows)}|n={heads.query}|e={heads.width}", build)


def add_rms_norm(rows: int, width: int) -> Case:
    def build(make: Numbers) -> Prepare:
        x, residual, weight = make.normal(rows, width), make.normal(rows, width), make.normal(width)
        return lambda function: lambda: function(x, residual, weight, 1e-6)

    return Case("add_rms_norm", f"m={size_class(rows)}|e={width}", build)


def swiglu(rows: int, width: int) -> Case:
    def build(make: Numbers) -> Prepare:
        gate_up = 2 * make.normal(rows, 2 * width)
        return lambda function: lambda: (function(gate_up),)

    return Case("swiglu", f"m={size_class(rows)}|f={width}", build)


def greedy(rows: int, vocabulary: int, first: int = 0, stop: int = 0) -> Case:
    """Rows with plain numbers, and where there are enough: ties, NaN, infinities."""

    def build(make: Numbers) -> Prepare:
        logits = make.normal(rows, vocabulary)
        for row, value in enumerate((4.0, torch.nan, torch.inf, -torch.inf), start=1):
            if row < rows:
                logits[row, first + row :: 3] = value
        if rows > 5:
            logits[5] = -torch.inf
        return lambda function: lambda: function(logits, first, stop or vocabulary)

    return Case("greedy", f"m={size_class(rows)}|v={(stop or vocabulary) - first}", build)


def shift_kv(capacity: int, length: int, heads: Heads, layers: int = 2) -> Case:
    def build(make: Numbers) -> Prepare:
        data = make.normal(layers, 2, 3, capacity, heads.kv, heads.width)
        return lambda function: lambda: (function(data, 2, 0, length), data)[1:]

    return Case("shift_kv", f"t={size_class(capacity)}|kv={heads.kv}|d={heads.width}", build)


def shift_kv_chain(capacity: int, lengths: Sequence[int], heads: Heads, layers: int = 2) -> Case:
    """Every stage one slot on, the oldest first."""

    def build(make: Numbers) -> Prepare:
        data = make.normal(layers, 2, len(lengths) + 1, capacity, heads.kv, heads.width)
        moves = [(slot, slot + 1, length) for slot, length in enumerate(lengths)][::-1]
        chain = torch.tensor(moves, dtype=torch.long, device=make.device).view(-1, 3)
        return lambda function: lambda: (function(data, chain), data)[1:]

    return Case("shift_kv_chain", f"m={len(lengths)}|t={size_class(capacity)}|kv={heads.kv}|d={heads.width}", build)


def rope_write_kv(spans: Sequence[Span], heads: Heads, *, paired: bool = False, sections: bool = False) -> Case:
    """sections: M-RoPE, three components of a position that differ."""

    def build(make: Numbers) -> Prepare:
        capacity = max(span.start + span.length for span in spans) + 1
        rows = _places(make, spans, heads, capacity, sections)
        slots, shape = 1 + max(span.slot for span in spans), (capacity, heads.kv, heads.width)
        qkv = make.normal(len(rows.flat), (heads.query + 2 * heads.kv) * heads.width)
        k, v = make.poison(slots, *shape), make.poison(slots, *shape)
        return lambda function: lambda: (function(qkv, heads.query, heads.kv, rows, k, v), k, v)

    name = "rope_write_kv_paired" if paired else "rope_write_kv"
    return Case(name, f"m={size_class(sum(span.length for span in spans))}|{heads.text}", build, stage_of(spans))


def rope_write_kv_int8(spans: Sequence[Span], heads: Heads) -> Case:
    def build(make: Numbers) -> Prepare:
        capacity = max(span.start + span.length for span in spans) + 1
        rows = _places(make, spans, heads, capacity, False)
        shape = 1 + max(span.slot for span in spans), capacity, heads.kv
        qkv = make.normal(len(rows.flat), (heads.query + 2 * heads.kv) * heads.width)
        qkv[0] = 0
        k, v = (torch.zeros(*shape, heads.width, dtype=torch.int8, device=make.device) for _ in "kv")
        k_scale, v_scale = (torch.zeros(*shape, device=make.device) for _ in "kv")

        def prepare(function: Callable[..., Any]) -> Call:
            def call() -> tuple[Tensor, ...]:
                q = function(qkv, heads.query, heads.kv, rows, (k, v), (k_scale, v_scale))
                return q, k * k_scale[..., None], v * v_scale[..., None], k_scale, v_scale

            return call

        return prepare

    return Case(
        "rope_write_kv_int8", f"m={size_class(sum(s.length for s in spans))}|{heads.text}", build, stage_of(spans)
    )


def packed_attention(spans: Sequence[Span], heads: Heads, layers: int = 1) -> Case:
    def build(make: Numbers) -> Prepare:
        layout, kv = _filled(make, spans, heads, layers)
        q = make.normal(len(layout.row_slot), heads.query, heads.width)

        def prepare(function: Callable[..., Any]) -> Call:
            attend = function(layout, kv)
            return lambda: tuple(attend(q, *kv.layer(layer)) for layer in range(layers))

        return prepare

    return Case("packed_attention", attention_shape(spans, heads), build, stage_of(spans))


def packed_attention_int8(spans: Sequence[Span], heads: Heads) -> Case:
    def build(make: Numbers) -> Prepare:
        layout, kv = _filled(make, spans, heads, 1)
        q = make.normal(len(layout.row_slot), heads.query, heads.width)
        pairs = [quantised(each.nan_to_num(7.0)) for each in kv.layer(0)]
        slots = pairs[0][0], pairs[1][0]
        unread = kv.data[0, 0, ..., 0].isnan()
        scales = pairs[0][1].masked_fill(unread, torch.nan), pairs[1][1].masked_fill(unread, torch.nan)

        def prepare(function: Callable[..., Any]) -> Call:
            attend = function(layout)
            return lambda: (attend(q, slots, scales),)

        return prepare

    return Case("packed_attention_int8", attention_shape(spans, heads), build, stage_of(spans))


def varlen_attention(lengths: Sequence[int], heads: Heads) -> Case:
    """q, k and v as views of one projection, as a vision tower has them."""

    def build(make: Numbers) -> Prepare:
        rows = sum(lengths)
        qkv = make.normal(rows, 3, heads.query, heads.width)
        starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=make.device)
        return lambda function: lambda: (function(*qkv.unbind(1), starts, max(lengths)),)

    return Case("varlen_attention", f"n={len(lengths)}|m={size_class(max(lengths))}|{heads.text}", build)


def stage_of(spans: Sequence[Span]) -> str:
    """prefill: longer spans alone; decode: single rows alone; packed: both."""
    kinds = {span.length > 1 for span in spans}
    return "packed" if len(kinds) > 1 else "prefill" if kinds == {True} else "decode"


def attention_shape(spans: Sequence[Span], heads: Heads) -> str:
    rows, longest = sum(span.length for span in spans), max(span.start + span.length for span in spans)
    return f"m={size_class(rows)}|t={size_class(longest)}|{heads.text}"


def _places(make: Numbers, spans: Sequence[Span], heads: Heads, capacity: int, sections: bool) -> RowPlaces:
    plain = PackedLayout.of(spans, make.device)
    position = plain.row_position
    turn = torch.stack([position, position // 3, position % 5]) if sections else None
    layout = PackedLayout.of(spans, make.device, turn)
    like = torch.empty(0, dtype=make.rounded, device=make.device)
    table = RotaryTable.of(capacity, heads.width, 10000.0, like)
    if sections:
        half = heads.width // 2
        table = RotaryTable(table.cos, table.sin, (half - 2 * (half // 3), half // 3, half // 3))
    rows = table.places(layout, capacity)
    return RowPlaces(*(each.to(make.dtype) for each in (rows.cos, rows.sin, rows.minus_sin)), rows.flat)


def _filled(make: Numbers, spans: Sequence[Span], heads: Heads, layers: int) -> tuple[PackedLayout, KVSlots]:
    """Slots with numbers where the spans may look, NaN everywhere else."""
    slots = 1 + max(span.slot for span in spans)
    capacity = max(span.start + span.length for span in spans) + 3
    kv = KVSlots(layers, slots, capacity, heads.kv, heads.width, make.dtype, make.device)
    kv.data.fill_(torch.nan)
    ends: dict[int, int] = {}
    for span in spans:
        ends[span.slot] = max(ends.get(span.slot, 0), span.start + span.length)
    for slot, end in ends.items():
        kv.data[:, :, slot, :end] = make.normal(layers, 2, end, heads.kv, heads.width)
    return PackedLayout.of(spans, make.device), kv
