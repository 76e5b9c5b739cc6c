"""Problems on which implementations of an operator are compared and timed: the same for tests, tuner and GPU suite.

A `TrialCase` generates its numbers from its seed on any device, prepares an implementation with them and returns its
outputs together with all memory that it may write. Memory that nothing may read is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from edgeflow.kernels.awq import AWQ, AwqWeight
from edgeflow.kernels.kv.formats import DENSE, DenseLayer, KVFormat, ScaledKV
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.kv.visibility import Visibility
from edgeflow.kernels.narrow_kv.scaled import quantised
from edgeflow.kernels.rope_write_kv import RotaryTable, RowPlaces
from edgeflow.kernels.table.dimensions import SIGNATURES, Signed
from edgeflow.kernels.timing import ring_size
from edgeflow.kernels.varlen_attention import Sequences
from edgeflow.kernels.weights import FLOAT, FloatWeight, Weight, converted

Outputs = tuple[Tensor, ...]
PERIOD = 1 << 16  # numbers of a problem that is only timed


@dataclass(frozen=True, slots=True)
class Numbers:
    """Random tensors of a case: generated in float32, rounded to `rounded`, returned as `dtype`."""

    device: torch.device
    dtype: torch.dtype
    rounded: torch.dtype
    generator: torch.Generator
    period: int = 0
    """Numbers of a tensor repeat after this many, which is faster to generate; 0: they do not."""

    @classmethod
    def of(cls, device: torch.device, dtype: torch.dtype, rounded: torch.dtype, period: int = 0) -> Numbers:
        where = device if device.type == "cuda" else "cpu"  # large weights are generated on their device
        return cls(device, dtype, rounded, torch.Generator(where).manual_seed(0), period)

    def normal(self, *shape: int) -> Tensor:
        if self.device.type == "meta":
            return torch.empty(shape, dtype=self.dtype, device=self.device)
        count = math.prod(shape)
        if not self.period or count <= self.period:
            return self.given(torch.randn(shape, generator=self.generator, device=self.generator.device))
        block = self.given(torch.randn(self.period, generator=self.generator, device=self.generator.device))
        return block.repeat(-(-count // self.period))[:count].view(shape)

    def given(self, values: Tensor) -> Tensor:
        return values.to(self.device).to(self.rounded).to(self.dtype)

    def poison(self, *shape: int) -> Tensor:
        return torch.full(shape, torch.nan, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Problem:
    """One call."""

    arguments: tuple[Any, ...]
    outputs: Callable[[Any], Outputs]
    """Turns the returned value into all results to compare, including the memory that may have been written."""
    planned: bool = False
    """The function is called once and returns the function that `outputs` runs, as attention does."""
    rows: tuple[int, ...] = ()
    """Rows of the call, if the arguments do not show them."""
    cold_bytes: int = 0
    """Bytes that a pass must read or write in memory because no cache holds them: weights (in 8 bits, the smallest
    form they are read in), keys and values.
    """

    def given_to(self, function: Callable[..., Any]) -> Callable[[], Outputs]:
        """A call that can be repeated and timed."""
        if self.planned:
            planned = function(*self.arguments)
            return lambda: self.outputs(planned)
        return lambda: self.outputs(function(*self.arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCase:
    """The recipe of one problem of one operator."""

    op_name: str
    build: Callable[[Numbers], Problem]
    layer_role: str = ""
    """The layer role of the call in a model, if it matters."""
    kv: str = ""
    """The format of the slots that it reads or writes."""
    causal: bool = True
    """False if rows see other rows than all up to themselves."""
    weight: str = ""
    """The format of its weight, if it has one."""
    wide: bool = False
    """True where its weight is in float32 whatever the dtype of its rows; the table serves it as float32."""

    def problem(self, device: torch.device, dtype: torch.dtype, rounded: torch.dtype | None = None) -> Problem:
        """A problem with the same numbers each time on a device, rounded to `rounded` (by default `dtype`) and given
        as `dtype`.
        """
        return self.build(Numbers.of(device, dtype, rounded or dtype))

    def ring(self, device: torch.device, dtype: torch.dtype, cache_bytes: int) -> list[Problem]:
        """Problems of this shape to time in turns: as many as do not fit into a cache (kernels/timing.py)."""
        first = self._to_time(device, dtype)
        others = range(1, ring_size(first.cold_bytes, cache_bytes))
        return [first, *(self._to_time(device, dtype) for _ in others)]

    def _to_time(self, device: torch.device, dtype: torch.dtype) -> Problem:
        return self.build(Numbers.of(device, dtype, dtype, PERIOD))

    def signed(self) -> Signed:
        """Stage and shape signature of the call, as in the table."""
        return _signed(self)


@lru_cache(maxsize=4096)
def _signed(case: TrialCase) -> Signed:
    """The signature, cached: even tensors without contents are slow to create, and a tuner asks several times."""
    problem = case.problem(torch.device("meta"), torch.float32)
    return SIGNATURES[case.op_name](*problem.arguments, *problem.rows)


@dataclass(frozen=True, slots=True)
class Heads:
    """H query heads and KH key-value heads of width D."""

    query: int
    kv: int
    width: int


def _alone(result: Any) -> Outputs:
    return (result,)


def rms_norm(rows: int, width: int, eps: float = 1e-6, role: str = "", *, wide: bool = False) -> TrialCase:
    def build(make: Numbers) -> Problem:
        weight = make.normal(width)
        return Problem((make.normal(rows, width), weight.float() if wide else weight, eps), _alone)

    return TrialCase(op_name="rms_norm", build=build, layer_role=role, wide=wide)


def head_norm(rows: int, heads: Heads, role: str = "query") -> TrialCase:
    """The norm of each head's query or key, inside a wider projection."""
    normed = slice(heads.query) if role == "query" else slice(heads.query, heads.query + heads.kv)

    def build(make: Numbers) -> Problem:
        x = make.normal(rows, heads.query + 2 * heads.kv, heads.width)[:, normed]
        return Problem((x, make.normal(heads.width), 1e-6), _alone)

    return TrialCase(op_name="rms_norm", build=build, layer_role=role)


def add_rms_norm(rows: int, width: int, role: str = "", *, wide: bool = False) -> TrialCase:
    def build(make: Numbers) -> Problem:
        weight = make.normal(width)
        both = make.normal(rows, width), make.normal(rows, width)
        return Problem((*both, weight.float() if wide else weight, 1e-6), tuple)

    return TrialCase(op_name="add_rms_norm", build=build, layer_role=role, wide=wide)


def add_adaptive_norm(rows: int, width: int, eps: float = 1e-6, *, first: bool = False) -> TrialCase:
    """Rows of three conditions in turn, whose numbers lie among those of other norms. first: nothing is added."""

    def build(make: Numbers) -> Problem:
        x, residual = None if first else make.normal(rows, width), make.normal(rows, width)
        numbers = make.normal(3, 2, 3, width).float()[:, 1]
        of_row = torch.arange(rows, device=make.device) * 2 % 3
        return Problem((x, residual, numbers, of_row, eps), tuple)

    return TrialCase(op_name="add_adaptive_norm", build=build)


def add_layer_norm(rows: int, width: int, eps: float = 1e-6) -> TrialCase:
    """Rows whose mean is far from zero."""

    def build(make: Numbers) -> Problem:
        x, residual = make.normal(rows, width), make.given(make.normal(rows, width) + 3.0)
        return Problem((x, residual, make.normal(width), make.normal(width), eps), tuple)

    return TrialCase(op_name="add_layer_norm", build=build)


def swiglu(rows: int, width: int, op_name: str = "swiglu") -> TrialCase:
    def build(make: Numbers) -> Problem:
        return Problem((2 * make.normal(rows, 2 * width),), _alone)

    return TrialCase(op_name=op_name, build=build)


def greedy(rows: int, vocabulary: int, first: int = 0, stop: int = 0) -> TrialCase:
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

    return TrialCase(op_name="greedy", build=build)


def shift_kv(capacity: int, length: int, heads: Heads, layers: int = 2) -> TrialCase:
    def build(make: Numbers) -> Problem:
        data = make.normal(layers, 2, 3, capacity, heads.kv, heads.width)
        return Problem((data, 2, 0, length), lambda _: (data,), cold_bytes=data.nbytes)

    return TrialCase(op_name="shift_kv", build=build)


def shift_kv_chain(capacity: int, lengths: Sequence[int], heads: Heads, layers: int = 2) -> TrialCase:
    """Move every stage by one slot, the oldest first."""

    def build(make: Numbers) -> Problem:
        data = make.normal(layers, 2, len(lengths) + 1, capacity, heads.kv, heads.width)
        moves = [(slot, slot + 1, length) for slot, length in enumerate(lengths)][::-1]
        chain = torch.tensor(moves, dtype=torch.long, device=make.device).view(-1, 3)
        return Problem((data, chain), lambda _: (data,), cold_bytes=data.nbytes)

    return TrialCase(op_name="shift_kv_chain", build=build)


def rope_write_kv(spans: Sequence[Span], heads: Heads, *, sections: bool = False) -> TrialCase:
    """sections: M-RoPE, three components of a position that differ."""

    def build(make: Numbers) -> Problem:
        capacity, rows = places(make, spans, heads, sections)
        shape = 1 + max(span.slot for span in spans), capacity, heads.kv, heads.width
        qkv = make.normal(len(rows.flat), (heads.query + 2 * heads.kv) * heads.width)
        layer = DenseLayer(make.poison(*shape), make.poison(*shape))
        cold_bytes = layer.keys.nbytes + layer.values.nbytes
        arguments = qkv, heads.query, heads.kv, rows, layer
        return Problem(arguments, lambda q: (q, layer.keys, layer.values), cold_bytes=cold_bytes)

    return TrialCase(op_name="rope_write_kv", build=build, kv=DENSE.name)


def rope_write_kv_scaled(spans: Sequence[Span], heads: Heads, kv_format: ScaledKV) -> TrialCase:
    """The values read back are compared; one row is all zeros."""

    def build(make: Numbers) -> Problem:
        capacity, rows = places(make, spans, heads, False)
        qkv = make.normal(len(rows.flat), (heads.query + 2 * heads.kv) * heads.width)
        qkv[0] = 0
        kv = empty_slots(
            make, heads, kv_format, slots=1 + max(span.slot for span in spans), capacity=capacity, layers=1
        )
        layer = kv.layer(0)

        def outputs(q: Tensor) -> Outputs:
            keys, values = layer.read(slice(None), slice(None), 0)
            return q, keys, values, layer.key_scales, layer.value_scales

        return Problem((qkv, heads.query, heads.kv, rows, layer), outputs, cold_bytes=kv.data.nbytes)

    return TrialCase(op_name="rope_write_kv", build=build, kv=kv_format.name)


def packed_attention(
    spans: Sequence[Span], heads: Heads, layers: int = 1, visibility: Sequence[Visibility] | None = None
) -> TrialCase:
    """visibility: the places that the rows of each span see."""

    def build(make: Numbers) -> Problem:
        layout, kv = filled(make, spans, heads, layers, visibility)
        q = make.normal(len(layout.row_slot), heads.query, heads.width)

        def outputs(attend: Any) -> Outputs:
            return tuple(attend(q, kv.layer(layer)) for layer in range(layers))

        return Problem((layout, kv), outputs, planned=True, cold_bytes=kv.nbytes)

    return TrialCase(op_name="packed_attention", build=build, kv=DENSE.name, causal=visibility is None)


def packed_attention_scaled(
    spans: Sequence[Span], heads: Heads, kv_format: ScaledKV, visibility: Sequence[Visibility] | None = None
) -> TrialCase:
    """The scales of rows that nothing may read are NaN."""

    def build(make: Numbers) -> Problem:
        layout, wide = filled(make, spans, heads, 1, visibility)
        q = make.normal(len(layout.row_slot), heads.query, heads.width)
        kv = empty_slots(make, heads, kv_format, slots=wide.slots, capacity=wide.capacity, layers=1)
        numbers, scales = quantised(wide.data.nan_to_num(7.0), kv_format.numbers)
        kv.data.copy_(numbers.view(torch.int8))
        kv.tensors[1][..., 0] = scales.masked_fill(wide.data[..., 0].isnan(), torch.nan)
        return Problem((layout, kv), lambda attend: (attend(q, kv.layer(0)),), planned=True, cold_bytes=kv.nbytes)

    return TrialCase(op_name="packed_attention", build=build, kv=kv_format.name, causal=visibility is None)


def linear(
    rows: int,
    outputs: int,
    inputs: int,
    *,
    bias: bool = False,
    role: str = "",
    group: int = 0,
    format: str = "",
) -> TrialCase:
    """A product with a weight.

    group: G of a weight in 4 bits. format: of the weight; by default AWQ with a group, otherwise float, which an
    implementation of another format converts.
    """
    format = format or (AWQ if group else FLOAT)

    def build(make: Numbers) -> Problem:
        x, floats = make.normal(rows, inputs), make.normal(outputs, inputs)
        weight: Weight = AwqWeight.nearest(floats, group) if group else converted(FloatWeight(floats), format)
        arguments = weight, make.normal(outputs) if bias else None
        cold_bytes = weight.nbytes if group else floats.numel()
        return Problem(arguments, lambda made: (made(x),), planned=True, rows=(rows,), cold_bytes=cold_bytes)

    return TrialCase(op_name="linear", build=build, layer_role=role, weight=format)


def varlen_attention(lengths: Sequence[int], heads: Heads, *, turned: bool = False) -> TrialCase:
    """q, k and v as views of one projection, as in a vision tower. turned: values lie apart from keys, as after RoPE of
    queries and keys."""

    def build(make: Numbers) -> Problem:
        qkv = make.normal(sum(lengths), 3, heads.query, heads.width)
        q, k, v = qkv.unbind(1)
        k = qkv[:, :2].clone()[:, 1] if turned else k
        return Problem((q, k, v, Sequences.of(lengths, make.device)), _alone)

    return TrialCase(op_name="varlen_attention", build=build)


def places(make: Numbers, spans: Sequence[Span], heads: Heads, sections: bool) -> tuple[int, RowPlaces]:
    """A slot's capacity, and the rotations and places of the rows of a pass."""
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
    return capacity, replace(rows, cos=rows.cos.to(make.dtype), sin=rows.sin.to(make.dtype))


def filled(
    make: Numbers, spans: Sequence[Span], heads: Heads, layers: int, visibility: Sequence[Visibility] | None
) -> tuple[PackedLayout, KVSlots]:
    """Slots with numbers up to the last place that rows see, NaN everywhere else."""
    slots = 1 + max(span.slot for span in spans)
    capacity = max(span.start + span.length for span in spans) + 3
    kv = empty_slots(make, heads, DENSE, slots=slots, capacity=capacity, layers=layers)
    kv.data.fill_(torch.nan)
    layout = PackedLayout.of(spans, make.device, visibility=visibility)
    looked_at = PackedLayout.of(spans, torch.device("cpu"), visibility=visibility)
    for slot in {span.slot for span in spans}:
        end = 1 + int(looked_at.seen()[looked_at.row_slot == slot].any(0).nonzero().max())
        kv.data[:, :, slot, :end] = make.normal(layers, 2, end, heads.kv, heads.width)
    return layout, kv


def empty_slots(make: Numbers, heads: Heads, kv_format: KVFormat, *, slots: int, capacity: int, layers: int) -> KVSlots:
    return KVSlots(
        layers=layers,
        slots=slots,
        capacity=capacity,
        kv_heads=heads.kv,
        head_dim=heads.width,
        dtype=make.dtype,
        device=make.device,
        format=kv_format,
    )
