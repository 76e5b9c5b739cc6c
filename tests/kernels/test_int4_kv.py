"""Slots of 4 bits: what a row sees follows from its position alone, however passes were cut and slots were used."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edgeflow.kernels.kv.formats import INT4, KVShape, slot_bytes
from edgeflow.kernels.kv.int4 import GROUP, Grid, in_four_bits, packed, unpacked
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.kv.visibility import causal
from edgeflow.kernels.narrow_kv.int4_write import most_groups
from edgeflow.kernels.rope_write_kv import RotaryTable
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow_client.errors import ConfigError

CPU = torch.device("cpu")
SLOTS, CAPACITY, HEADS, KV_HEADS, WIDTH = 3, 150, 4, 2, 8
TABLE = built_in_table()
WRITES = ["reference", "indexed", "on_device"]
ATTENTIONS = ["reference", "masked", "widened"]


def store(dtype: torch.dtype = torch.float32) -> KVSlots:
    """Slots that hold anything: what was left in them must never be seen."""
    kv = KVSlots(
        layers=2,
        slots=SLOTS,
        capacity=CAPACITY,
        kv_heads=KV_HEADS,
        head_dim=WIDTH,
        dtype=dtype,
        device=CPU,
        format=INT4,
    )
    for tensor in kv.tensors:
        if tensor.dtype == dtype:
            tensor.fill_(torch.nan)
        else:
            tensor.fill_(0x7F)
    return kv


def four_bits(numbers: Tensor, dim: int) -> Tensor:
    """Each number as the nearest of 16 steps between the least and the largest, written out."""
    out = torch.empty_like(numbers)
    lines, found = numbers.movedim(dim, -1).reshape(-1, numbers.shape[dim]), []
    for line in lines.tolist():
        low, high = min(line), max(line)
        step = max((high - low) / 15, max(abs(low), abs(high)) / 2**14) * (1 + 2**-8)
        step = float(torch.tensor(step).bfloat16()) or 1.0
        first = math.floor(low / step + 0.5)
        found.append([(first + min(max(math.floor(x / step + 0.5) - first, 0), 15)) * step for x in line])
    shape = numbers.movedim(dim, -1).shape
    out.copy_(torch.tensor(found).view(shape).movedim(-1, dim))
    return out


class Int4Twin:
    """The exact keys and values of every slot, and attention row by row over them."""

    def __init__(self) -> None:
        self.keys, self.values = torch.zeros(2, SLOTS, CAPACITY, KV_HEADS, WIDTH)
        self.quantised: dict[bytes, Tensor] = {}

    def write(self, layout: PackedLayout, keys: Tensor, values: Tensor, live: Tensor) -> None:
        where = layout.row_slot[live], layout.row_position[live]
        self.keys[where], self.values[where] = keys[live], values[live]

    def attend(self, q: Tensor, slot: int, position: int) -> Tensor:
        keys = self.keys[slot, : position + 1].clone()
        for first in range(0, position + 1 - GROUP + 1, GROUP):
            keys[first : first + GROUP] = self._four_bits(keys[first : first + GROUP], 0)
        values = torch.stack([self._four_bits(each, -1) for each in self.values[slot, : position + 1]])
        group = HEADS // KV_HEADS
        keys, values = (each.repeat_interleave(group, dim=1) for each in (keys, values))
        weights = (torch.einsum("hd,nhd->hn", q, keys) / WIDTH**0.5).softmax(-1)
        return torch.einsum("hn,nhd->hd", weights, values)

    def _four_bits(self, numbers: Tensor, dim: int) -> Tensor:
        key = numbers.contiguous().numpy().tobytes()
        if key not in self.quantised:
            self.quantised[key] = four_bits(numbers, dim)
        return self.quantised[key]


class Passes:
    """Passes over a store and its twin."""

    def __init__(self, write: str, attention: str) -> None:
        self.kv, self.twin = store(), Int4Twin()
        self.ends, self.furthest = [0] * SLOTS, [0] * SLOTS
        self._write = TABLE.implementation("rope_write_kv", write, "int4").load()
        self._attention = TABLE.implementation("packed_attention", attention, "int4").load()
        self._rotary = RotaryTable.of(CAPACITY, WIDTH, 10000.0, torch.ones(1))
        self._dice = torch.Generator().manual_seed(0)

    def run(self, spans: list[Span], samples: list[int] | None = None, padding: int = 0, layer: int = 1) -> None:
        """Write rows, and compare what they and the sampled rows by themselves attend to. padding: rows that follow
        those of each span, where the slot has room."""
        padded = [Span(s.slot, s.start, min(s.length + padding, CAPACITY - s.start)) for s in spans]
        live = torch.cat([torch.arange(p.length) < s.length for p, s in zip(padded, spans, strict=True)])
        layout = replace(PackedLayout.of(padded, CPU, samples=samples), live=live if padding else None)
        qkv = torch.randn(len(layout.row_slot), (HEADS + 2 * KV_HEADS) * WIDTH, generator=self._dice)
        rows = self._rotary.places(layout, CAPACITY)
        attend = self._attention(layout, self.kv)
        alone = self._attention(layout.of_sampled_rows(), self.kv) if len(layout.sampled_rows) else None
        for index in range(2):  # layers share what is exact
            q = self._write(qkv * (1 + index), HEADS, KV_HEADS, rows, self.kv.layer(index))
            found = attend(q, self.kv.layer(index))
            own = alone(q[layout.sampled_rows], self.kv.layer(index)) if alone is not None else None
            if index == layer:
                straight = (qkv * (1 + index)).view(len(qkv), -1, WIDTH)
                self.twin.write(layout, self._turned(straight, rows), straight[:, HEADS + KV_HEADS :], live)
                self._compare(q, found, layout, own, live)
        for span in spans:
            self.ends[span.slot] = span.start + span.length
            before = self.furthest[span.slot] if span.start else 0
            self.furthest[span.slot] = max(before, span.start + span.length)

    def _turned(self, straight: Tensor, rows) -> Tensor:
        keys, half = straight[:, HEADS : HEADS + KV_HEADS], WIDTH // 2
        a, b, cos, sin = keys[..., :half], keys[..., half:], rows.cos[..., :half], rows.sin
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def _compare(self, q: Tensor, found: Tensor, layout: PackedLayout, alone: Tensor | None, live: Tensor) -> None:
        slots, positions = layout.row_slot[live].tolist(), layout.row_position[live].tolist()
        expected = torch.stack([self.twin.attend(*each) for each in zip(q[live], slots, positions, strict=True)])
        torch.testing.assert_close(found[live], expected, atol=2e-5, rtol=1e-5)
        if alone is not None and live.all():
            torch.testing.assert_close(alone, expected[layout.sampled_rows], atol=2e-5, rtol=1e-5)


@st.composite
def pass_plans(draw) -> list[list[tuple[int, str, int, int]]]:
    """For each pass: slot, where its rows begin, how far back, how many."""
    plans = []
    for _ in range(draw(st.integers(1, 4))):
        slots = draw(st.permutations(range(SLOTS)))[: draw(st.integers(1, SLOTS))]
        plans.append(
            [
                (
                    slot,
                    draw(st.sampled_from(["on", "on", "on", "back", "anew"])),
                    draw(st.integers(1, GROUP)),
                    draw(st.one_of(st.just(1), st.integers(1, 8), st.sampled_from([31, 32, 33, 64, 70]))),
                )
                for slot in slots
            ]
        )
    return plans


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("write", WRITES)
@settings(max_examples=10, deadline=None)
@given(plans=pass_plans(), samples=st.integers(0, 3), padding=st.sampled_from([0, 0, 5, 40, 90]))
def test_a_row_sees_what_follows_from_its_position(write, attention, plans, samples, padding):
    """Rows that pad a pass, as where it is replayed, put nothing that follows out of place."""
    passes = Passes(write, attention)
    for plan in plans:
        spans = []
        for slot, way, back, length in plan:
            end = passes.ends[slot]
            start = {"on": end, "back": max(min(end, passes.furthest[slot] - back), 0), "anew": 0}[way]
            length = min(length, CAPACITY - start)
            if length:
                spans.append(Span(slot, start, length))
        if spans:
            passes.run(spans, [min(samples, span.length) for span in spans], padding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=25, deadline=None)
@given(plans=pass_plans(), padding=st.sampled_from([0, 0, 5, 40, 90]))
def test_writes_on_the_device_equal_those_placed_by_the_host(dtype: torch.dtype, plans, padding: int):
    """Bit by bit, in every pass: codes, grids, the newest keys, and the exact ones that rows see."""
    writes = [TABLE.implementation("rope_write_kv", name, "int4").load() for name in ("indexed", "on_device")]
    stores, rotary = (store(dtype), store(dtype)), RotaryTable.of(CAPACITY, WIDTH, 1e4, torch.ones(1, dtype=dtype))
    dice = torch.Generator().manual_seed(0)
    for kv in stores:
        kv.layer(0).newest.copy_(torch.randn(kv.layer(0).newest.shape, generator=dice.manual_seed(0)))
    for plan in plans:
        spans = [Span(slot, min(3 * back, CAPACITY - length), length) for slot, _, back, length in plan]
        padded = [replace(each, length=min(each.length + padding, CAPACITY - each.start)) for each in spans]
        live = torch.cat([torch.arange(p.length) < s.length for p, s in zip(padded, spans, strict=True)])
        rows = rotary.places(replace(PackedLayout.of(padded, CPU), live=live), CAPACITY)
        qkv = torch.randn(len(live), (HEADS + 2 * KV_HEADS) * WIDTH, generator=dice).to(dtype)
        queries = [write(qkv, HEADS, KV_HEADS, rows, kv.layer(0)) for write, kv in zip(writes, stores, strict=True)]
        assert torch.equal(*queries)
        one, other = (kv.layer(0) for kv in stores)
        for name in ("keys", "values", "key_grids", "value_grids", "newest"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0, equal_nan=True)
        for span in spans:
            seen = span.slot, slice(span.start // GROUP * GROUP, span.start + span.length)
            torch.testing.assert_close(one.exact[seen], other.exact[seen], rtol=0, atol=0, equal_nan=True)


@given(st.integers(1, 200))
def test_a_span_lies_in_no_more_groups_than_are_counted(length: int):
    found = {len({place // GROUP for place in range(start, start + length)}) for start in range(GROUP)}
    assert max(found) == most_groups([length])


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("length", [GROUP, 45, 64, 70])
def test_another_sequence_goes_on_after_what_can_be_reused(write: str, length: int):
    """In another slot and in the same, while the first has gone on."""
    passes = Passes(write, "widened")
    passes.run([Span(0, 0, length)])
    passes.run([Span(0, length, 20)])
    known = INT4.reusable(length)
    assert length - GROUP < known <= length
    passes.kv.copy_rows(0, 1, known)
    for held in (passes.twin.keys, passes.twin.values):
        held[1, :known] = held[0, :known]
    passes.run([Span(1, known, 40), Span(0, length + 20, 1)])
    passes.run([Span(0, known, 40)])


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("length", [1, 31, 32, 33, 70])
def test_a_sequence_is_copied_to_another_slot_unchanged(write: str, length: int):
    """A ring moves on after each pass: the oldest first."""
    passes, chain = Passes(write, "widened"), TABLE.implementation("shift_kv_chain", "indexed").load()
    passes.run([Span(0, 0, length), Span(1, 0, 40)])
    passes.kv.move_rows(chain, torch.tensor([[1, 2, 40], [0, 1, length]]))
    for held in (passes.twin.keys, passes.twin.values):
        held[2, :40], held[1, :length] = held[1, :40].clone(), held[0, :length].clone()
    passes.run([Span(0, 0, 5), Span(1, length, 3), Span(2, 40, 1)])
    passes.run([Span(1, length + 1, 33), Span(2, 41, 7)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_is_at_most_half_a_step_off(dtype: torch.dtype):
    """With large offsets, as keys have where they are biased, and for numbers that are all the same."""
    spread = torch.randn(32, 64, generator=torch.Generator().manual_seed(3))
    offset = torch.tensor([0.0, 0.1, 5.0, 300.0]).repeat(16)
    numbers = (spread * torch.logspace(-3, 1, 64) + offset).to(dtype)
    numbers[:, 7], numbers[:, 8] = 0, 300
    grid = Grid.over(numbers, 0)
    found = grid.numbers(unpacked(packed(grid.codes(numbers))))
    wide = numbers.float()
    step = torch.maximum((wide.amax(0) - wide.amin(0)) / 15, wide.abs().amax(0) / 2**14) * (1 + 2**-7)
    assert ((found - wide).abs() <= step / 2 + 1e-30).all()
    assert (found[:, 7] == 0).all() and grid.codes(numbers).max() == 15


def test_values_that_are_not_finite_stay_so():
    for bad in (torch.nan, torch.inf, -torch.inf):
        numbers = torch.ones(4, 8)
        numbers[2, 3] = bad
        grid = Grid.over(numbers, -1)
        found = grid.numbers(grid.codes(numbers))
        assert not found[2].isfinite().any() and found[[0, 1, 3]].isfinite().all()


def test_a_slot_takes_what_its_tensors_take():
    """Codes, grids, the newest keys of two groups, and one layer of exact keys."""
    shape = KVShape(layers=3, capacity=CAPACITY, kv_heads=KV_HEADS, head_dim=WIDTH, dtype=torch.bfloat16)
    groups, numbers = 5, KV_HEADS * WIDTH
    layer = CAPACITY * (numbers + 2 * 2 * KV_HEADS) + groups * 2 * 2 * numbers + 64 * numbers * 2
    assert slot_bytes(INT4, shape) == 3 * layer + groups * GROUP * numbers * 2


def test_rows_that_see_other_places_are_rejected():
    layout = PackedLayout.of([Span(0, 0, 3)], CPU, visibility=[causal(Span(0, 0, 3))])
    with pytest.raises(ConfigError, match="int4 KV serves rows that see all up to themselves"):
        TABLE.implementation("packed_attention", "widened", "int4").load()(layout, store())


@given(st.integers(0, 1000))
def test_whole_groups_that_are_full_are_in_four_bits(position: int):
    found = in_four_bits(position)
    assert found % GROUP == 0 and found <= position + 1 < found + GROUP
