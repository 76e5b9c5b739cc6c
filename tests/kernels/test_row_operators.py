"""Operators on rows against their references: rms_norm, swiglu, rope_write_kv, shift_kv; and the layout of rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.rope_write_kv import RotaryTable
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import built_in_table

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def implementations(op_name: str) -> list:
    """Those that a CPU may have, for slots in the model's dtype; the reference is what they are compared with."""
    table, here = built_in_table(), Hardware.of(CPU)
    candidates = (table.implementation(op_name, impl_id, "dense") for impl_id in table.candidates(op_name, "dense"))
    return [
        pytest.param(each.load(), id=each.impl_id)
        for each in candidates
        if each.impl_id != "reference" and not each.objection(here, torch.float32)
    ]


def reference(op_name: str):
    return built_in_table().implementation(op_name, "reference", "dense").function


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("function", implementations("rms_norm"))
@pytest.mark.parametrize("shape", [(1, 8), (7, 48), (63, 128)])
def test_rms_norm(function, shape, dtype):
    x, weight = 5 * torch.randn(shape), torch.randn(shape[-1])
    expected = reference("rms_norm")(x, weight, 1e-6)
    found = function(x.to(dtype), weight.to(dtype), 1e-6)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("function", implementations("rms_norm"))
def test_rms_norm_eps_counts(function):
    """Small rows tell eps 1e-6 from 1e-5."""
    x, weight = torch.full((1, 16), 1e-3), torch.ones(16)
    assert function(x, weight, 1e-6)[0, 0].item() == pytest.approx(1 / 2**0.5, rel=1e-5)
    assert function(x, weight, 1e-5)[0, 0].item() == pytest.approx(1 / 11**0.5, rel=1e-5)


@pytest.mark.parametrize("op_name", ["rms_norm", "add_rms_norm"])
@pytest.mark.parametrize("impl_id", ["reference", "fused"])
def test_a_wide_weight_is_applied_before_the_only_rounding(op_name, impl_id):
    """Rounded before the weight too, every other number would be another."""
    x, weight = torch.randn(16, 64).bfloat16(), torch.randn(64)
    wanted = reference("rms_norm")(x.float(), weight, 1e-6).bfloat16()
    function = built_in_table().implementation(op_name, impl_id).load()
    given = (x, weight) if op_name == "rms_norm" else (x, torch.zeros_like(x), weight)
    found = function(*given, 1e-6)
    found = found if op_name == "rms_norm" else found[0]
    assert found.dtype == torch.bfloat16
    assert (found != wanted).float().mean() < 0.01
    assert (reference("rms_norm")(x, weight.bfloat16(), 1e-6) != wanted).float().mean() > 0.2


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("function", implementations("swiglu"))
@pytest.mark.parametrize("rows", [1, 6, 63])
def test_swiglu(function, rows, dtype):
    gate_up = 3 * torch.randn(rows, 2 * 44)
    kept = gate_up.to(dtype)
    expected = reference("swiglu")(gate_up)
    torch.testing.assert_close(function(kept).float(), expected, atol=3 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert torch.equal(kept, gate_up.to(dtype)), "the input is changed"


@pytest.mark.parametrize("function", implementations("rope_write_kv"))
@settings(max_examples=30, deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 19)), min_size=1, max_size=30, unique=True),
    heads=st.sampled_from([(4, 4), (4, 2), (3, 1)]),
)
def test_rope_write_kv(function, places, heads):
    spans = [Span(slot, position, 1) for slot, position in places]
    layout = PackedLayout.of(spans, CPU)
    qkv = torch.randn(len(places), (heads[0] + 2 * heads[1]) * 8)
    rows = RotaryTable.of(20, 8, 10000.0, qkv).places(layout, capacity=20)
    stores = [
        KVSlots(layers=1, slots=5, capacity=20, kv_heads=heads[1], head_dim=8, dtype=torch.float32, device=CPU)
        for _ in range(2)
    ]
    for kv in stores:
        kv.data.fill_(torch.nan)
    expected = reference("rope_write_kv")(qkv, *heads, rows, stores[0].layer(0))
    found = function(qkv, *heads, rows, stores[1].layer(0))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(stores[1].data, stores[0].data, atol=1e-6, rtol=1e-6, equal_nan=True)
    assert stores[1].data.isfinite().sum() == len(places) * 2 * heads[1] * 8, "rows are written elsewhere too"


def test_rotation_depends_on_the_distance_only():
    table = RotaryTable.of(64, 16, 10000.0, torch.ones(1, dtype=torch.float64))
    q, k = torch.randn(2, 16, dtype=torch.float64)
    kv = KVSlots(layers=1, slots=1, capacity=64, kv_heads=1, head_dim=16, dtype=torch.float64, device=CPU)

    def score(position: int, distance: int) -> float:
        layout = PackedLayout.of([Span(0, position, 1), Span(0, position + distance, 1)], CPU)
        qkv = torch.cat([q, k, k]).expand(2, -1).clone()
        turned = reference("rope_write_kv")(qkv, 1, 1, table.places(layout, 64), kv.layer(0))
        return (turned[1, 0] @ kv.layer(0).keys[0, position, 0]).item()

    assert score(0, 5) == pytest.approx(score(40, 5), abs=1e-5)
    assert score(0, 5) != pytest.approx(score(0, 6), abs=1e-3)
    assert score(3, 0) == pytest.approx((q @ k).item(), abs=1e-5)


@pytest.mark.parametrize("function", implementations("shift_kv"))
@pytest.mark.parametrize(("source", "target", "length"), [(0, 1, 5), (2, 0, 7), (1, 2, 0), (0, 2, 8)])
def test_shift_kv(function, source, target, length):
    data = torch.randn(3, 2, 3, 8, 2, 4)
    expected = data.clone()
    reference("shift_kv")(expected, source, target, length)
    found = data.clone()
    function(found, source, target, length)
    assert torch.equal(found, expected)
    assert torch.equal(found[:, :, target, :length], data[:, :, source, :length])
    assert torch.equal(found[:, :, target, length:], data[:, :, target, length:])


def test_layout_of_spans():
    layout = PackedLayout.of([Span(4, 0, 3), Span(1, 7, 1), Span(0, 5, 2)], CPU)
    assert layout.row_slot.tolist() == [4, 4, 4, 1, 0, 0]
    assert layout.row_position.tolist() == [0, 1, 2, 7, 5, 6]
    assert layout.sampled_rows.tolist() == [2, 3, 5]


def test_sampled_rows_are_any_number_of_the_last_of_each_span():
    layout = PackedLayout.of([Span(4, 6, 3), Span(1, 7, 1), Span(0, 5, 2), Span(2, 0, 3)], CPU, samples=(0, 1, 2, 1))
    assert layout.sampled_rows.tolist() == [3, 4, 5, 8]
    alone = layout.of_sampled_rows()
    assert (alone.lengths, alone.reach) == ((1, 1, 1, 1), layout.reach)
    assert alone.spans == (Span(1, 7, 1), Span(0, 5, 1), Span(0, 6, 1), Span(2, 2, 1))
    assert alone.row_slot.tolist() == [1, 0, 0, 2]
    assert alone.row_position.tolist() == alone.rope_position[0].tolist() == [7, 5, 6, 2]
    assert alone.of_sampled_rows().spans == alone.spans


def test_a_pass_that_samples_nothing_has_no_sampled_rows():
    layout = PackedLayout.of([Span(0, 0, 3), Span(1, 2, 1)], CPU, samples=(0, 0))
    assert layout.sampled_rows.tolist() == [] and layout.of_sampled_rows().spans == ()


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 31, 32])
def test_index_tensors_of_a_layout_are_aligned_at_any_number_of_rows(rows: int):
    """Triton compiles a kernel once more for a pointer that is no multiple of 16 bytes: seconds within a pass."""
    layout = PackedLayout.of([Span(2, 5, rows), Span(0, 9, 1)], CPU)
    for index in (layout.row_slot, layout.row_position, layout.rope_position, layout.sampled_rows):
        assert index.storage_offset() * index.element_size() % 16 == 0
    assert layout.row_position.tolist() == [*range(5, 5 + rows), 9]
    assert layout.rope_position.shape == (1, rows + 1)


def test_kv_slots_say_what_they_take():
    kv = KVSlots(layers=3, slots=5, capacity=7, kv_heads=2, head_dim=4, dtype=torch.bfloat16, device=CPU)
    assert (kv.slots, kv.capacity, kv.nbytes) == (5, 7, 3 * 2 * 5 * 7 * 2 * 4 * 2)
    keys, values = kv.layer(1).keys, kv.layer(1).values
    keys[2, 3] = 1
    assert kv.data[1, 0, 2, 3].sum() == 8 and values.sum() == 0
