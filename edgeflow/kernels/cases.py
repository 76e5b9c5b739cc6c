"""Problems on which implementations of an operator are compared and timed: the same for tests, tuner and GPU suite.

A `Case` makes its numbers from its seed on any device, prepares an implementation with them and gives what it
returns together with all memory it may write. Memory nobody may read is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgeflow.kernels.int8_kv import quantised
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.layout import PackedLayout, Span
from edgeflow.kernels.rope_write_kv import RotaryTable, RowPlaces
from edgeflow.kernels.shapes import SIGNATURES, Signed
from edgeflow.kernels.varlen_attention import Sequences

Outputs = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Random tensors of a case: drawn in float32, rounded to `rounded`, given as `dtype`."""

    device: torch.device
    dtype: torch.dtype
    rounded: torch.dtype
    generator: torch.Generator

    @classmethod
    def of(cls, device: torch.device, dtype: torch.dtype, rounded: torch.dtype, seed: int) -> Numbers:
        where = device if device.type == "cuda" else "cpu"  # large weights are drawn where they stay
        return cls(device, dtype, rounded, torch.Generator(where).manual_seed(seed))

    def normal(self, *shape: int) -> Tensor:
        if self.device.type == "meta":
            return torch.empty(shape, dtype=self.dtype, device=self.device)
        return self.given(torch.randn(shape, generator=self.generator, device=self.generator.device))

    def given(self, values: Tensor) -> Tensor:
        return values.to(self.device).to(self.rounded).to(self.dtype)

    def poison(self, *shape: int) -> Tensor:
        return torch.full(shape, torch.nan, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Problem:
    """One call. outputs: from what it returned, all that counts, memory it may have written included.

    planned: the function is called once and returns what `outputs` runs, as attention does. rows: of the call, where
    the arguments do not tell.
    """

    arguments: tuple[Any, ...]
    outputs: Callable[[Any], Outputs]
    planned: bool = False
    rows: tuple[int, ...] = ()

    def given_to(self, function: Callable[..., Any]) -> Callable[[], Outputs]:
        """What may be called, and timed, again and again."""
        if self.planned:
            planned = function(*self.arguments)
            return lambda: self.outputs(planned)
        return lambda: self.outputs(function(*self.arguments))


@dataclass(frozen=True, slots=True)
class Case:
    """A recipe of one problem of one operator, in a role of a model's layer where it has one."""

    op_name: str
    build: Callable[[Numbers], Problem]
    seed: int = 0
    layer_role: str = ""

    def problem(self, device: torch.device, dtype: torch.dtype, rounded: torch.dtype | None = None) -> Problem:
        """The same numbers each time on a device; rounded to `rounded`, `dtype` unless told, and given as `dtype`."""
        return self.build(Numbers.of(device, dtype, rounded or dtype, self.seed))

    def signed(self) -> Signed:
        """Stage and shape signature, as the table sees its call."""
        problem = self.problem(torch.device("meta"), torch.float32)
        return SIGNATURES[self.op_name](*problem.arguments, *problem.rows)


@dataclass(frozen=True, slots=True)
class Heads:
    """H query heads, KH key-value heads, D numbers a head."""

    query: int
    kv: int
    width: int


def _alone(result: Any) -> Outputs:
    return (result,)


def rms_norm(rows: int, width: int, eps: float = 1e-6) -> Case:
    def build(make: Numbers) -> Problem:
        return Problem((make.normal(rows, width), make.normal(width), eps), _alone)

    return Case("rms_norm", build)


def head_norm(rows: int, heads: Heads) -> Case:
    """Of each head, out of a wider projection."""

    def build(make: Numbers) -> Problem:
        x = make.normal(rows, heads.query + 2 * heads.kv, heads.width)[:, : heads.query]
        return Problem((x, make.normal(heads.width), 1e-6), _alone)

    return Case("rms_norm", build)


def add_rms_norm(rows: int, width: int) -> Case:
    def build(make: Numbers) -> Problem:
        return Problem((make.normal(rows, width), make.normal(rows, width), make.normal(width), 1e-6), tuple)

    return Case("add_rms_norm", build)


def add_layer_norm(rows: int, width: int, eps: float = 1e-6) -> Case:
    """Rows far from a mean of zero."""

    def build(make: Numbers) -> Problem:
        x, residual = make.normal(rows, width), make.given(make.normal(rows, width) + 3.0)
        return Problem((x, residual, make.normal(width), make.normal(width), eps), tuple)

    return Case("add_layer_norm", build)


def swiglu(rows: int, width: int) -> Case:
    def build(make: Numbers) -> Problem:
        return Problem((2 * make.normal(rows, 2 * width),), _alone)

    return Case("swiglu", build)


def greedy(rows: int, vocabulary: int, first: int = 0, stop: int = 0) -> Case:
    """The largest logit first or last in its slice, plain numbers, ties, NaN, infinities; NaN outside the slice."""

    def build(make: Numbers) -> Problem:
        logits = make.normal(rows, vocabulary)
        logits[:, :first] = torch.nan
        logits[:, stop or vocabulary :] = torch.nan
        logits[:1, (stop or vocabulary) - 1] = 9.0
        logits[6:7, first] = 9.0
        for row, value in enumerate((4.0, torch.nan, torch.inf, -torch.inf), start=1):
            if row < rows:
                logits[row, first + row : stop or vocabulary : 3] = value
        if rows > 5:
            logits[5] = -torch.inf
        return Problem((logits, first, stop or vocabulary), tuple)

    return Case("greedy", build)


def shift_kv(capacity: int, length: int, heads: Heads, layers: int = 2) -> Case:
    def build(make: Numbers) -> Problem:
        data = make.normal(layers, 2, 3, capacity, heads.kv, heads.width)
        return Problem((data, 2, 0, length), lambda _: (data,))

    return Case("shift_kv", build)


def shift_kv_chain(capacity: int, lengths: Sequence[int], heads: Heads, layers: int = 2) -> Case:
    """Every stage one slot on, the oldest first."""

    def build(make: Numbers) -> Problem:
        data = make.normal(layers, 2, len(lengths) + 1, capacity, heads.kv, heads.width)
        moves = [(slot, slot + 1, length) for slot, length in enumerate(lengths)][::-1]
        chain = torch.tensor(moves, dtype=torch.long, device=make.device).view(-1, 3)
        return Problem((data, chain), lambda _: (data,))

    return Case("shift_kv_chain", build)


def rope_write_kv(spans: Sequence[Span], heads: Heads, *, paired: bool = False, sections: bool = False) -> Case:
    """sections: M-RoPE, three components of a position that differ."""

    def build(make: Numbers) -> Problem:
        capacity, rows = _places(make, spans, heads, sections)
        shape = 1 + max(span.slot for span in spans), capacity, heads.kv, heads.width
        qkv = make.normal(len(rows.flat), (heads.query + 2 * heads.kv) * heads.width)
        k, v = make.poison(*shape), make.poison(*shape)
        return Problem((qkv, heads.query, heads.kv, rows, k, v), lambda q: (q, k, v))

    return Case("rope_write_kv_paired" if paired else "rope_write_kv", build)


def rope_write_kv_int8(spans: Sequence[Span], heads: Heads) -> Case:
    """What is read back is compared; one row is all zeros."""

    def build(make: Numbers) -> Problem:
        capacity, rows = _places(make, spans, heads, False)
        shape = 1 + max(span.slot for span in spans), capacity, heads.kv
        qkv = make.normal(len(rows.flat), (heads.query + 2 * heads.kv) * heads.width)
        qkv[0] = 0
        k, v = (torch.zeros(*shape, heads.width, dtype=torch.int8, device=make.device) for _ in "kv")
        a, b = (torch.zeros(*shape, device=make.device) for _ in "kv")
        arguments = qkv, heads.query, heads.kv, rows, (k, v), (a, b)
        return Problem(arguments, lambda q: (q, k * a[..., None], v * b[..., None], a, b))

    return Case("rope_write_kv_int8", build)


def packed_attention(spans: Sequence[Span], heads: Heads, layers: int = 1) -> Case:
    def build(make: Numbers) -> Problem:
        layout, kv = _filled(make, spans, heads, layers)
        q = make.normal(len(layout.row_slot), heads.query, heads.width)
        return Problem(
            (layout, kv), lambda attend: tuple(attend(q, *kv.layer(layer)) for layer in range(layers)), planned=True
        )

    return Case("packed_attention", build)


def packed_attention_int8(spans: Sequence[Span], heads: Heads) -> Case:
    """Scales of what nobody may read are NaN."""

    def build(make: Numbers) -> Problem:
        layout, wide = _filled(make, spans, heads, 1)
        q = make.normal(len(layout.row_slot), heads.query, heads.width)
        sizes = wide.slots, wide.capacity, heads.kv, heads.width
        kv = KVSlots(1, *sizes, make.dtype, make.device, int8=True)
        numbers, scales = quantised(wide.data.nan_to_num(7.0))
        kv.data.copy_(numbers)
        if kv.scales is not None:
            kv.scales[..., 0] = scales.masked_fill(wide.data[..., 0].isnan(), torch.nan)
        return Problem((layout, kv), lambda attend: (attend(q, *kv.layer(0)),), planned=True)

    return Case("packed_attention_int8", build)


def linear(rows: int, outputs: int, inputs: int, *, bias: bool = False, residual: bool = False, role: str = "") -> Case:
    def build(make: Numbers) -> Problem:
        x, weight = make.normal(rows, inputs), make.normal(outputs, inputs)
        offset = make.normal(outputs) if bias else None
        before = make.normal(rows, outputs) if residual else None
        return Problem((weight, offset), lambda made: (made(x, before),), planned=True, rows=(rows,))

    return Case("linear", build, layer_role=role)


def varlen_attention(lengths: Sequence[int], heads: Heads, *, turned: bool = False) -> Case:
    """q, k and v as views of one projection, as a vision tower has them. turned: values lie apart from keys, as where
    RoPE has turned queries and keys."""

    def build(make: Numbers) -> Problem:
        qkv = make.normal(sum(lengths), 3, heads.query, heads.width)
        q, k, v = qkv.unbind(1)
        k = qkv[:, :2].clone()[:, 1] if turned else k
        return Problem((q, k, v, Sequences.of(lengths, make.device)), _alone)

    return Case("varlen_attention", build)


def _places(make: Numbers, spans: Sequence[Span], heads: Heads, sections: bool) -> tuple[int, RowPlaces]:
    """A slot's capacity, and where the rows of a pass turn and go."""
    capacity = max(span.start + span.length for span in spans) + 1
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
    cos, sin, minus_sin = (each.to(make.dtype) for each in (rows.cos, rows.sin, rows.minus_sin))
    return capacity, RowPlaces(cos, sin, minus_sin, rows.flat)


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
