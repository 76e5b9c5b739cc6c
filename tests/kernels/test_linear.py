"""LINEAR: every implementation against the formula."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.kernels.awq import AwqWeight
from edgeflow.kernels.linear import ByRows, Gemm, Int8, Linear, Packed, Reference, packed_dtypes
from edgeflow.kernels.table.bind_linear import bind_linear, bind_linear_stage
from edgeflow.kernels.table.implementations import Implementation
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, TableEntry, built_in_table
from edgeflow.kernels.weights import FloatWeight, Int8Weight, Weight
from edgeflow_client.errors import ConfigError


def problem(rows: int, inputs: int, outputs: int, *, bias: bool, seed: int):
    generator = torch.Generator().manual_seed(seed)
    x, weight = (torch.randn(*shape, generator=generator) for shape in ((rows, inputs), (outputs, inputs)))
    return x, FloatWeight(weight), torch.randn(outputs, generator=generator) if bias else None


def eight_bits(weight: FloatWeight, bias: torch.Tensor | None) -> Int8:
    return Int8(Int8Weight.of(weight.values), bias)


def error(made: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((made - wanted).norm() / wanted.norm())


@given(
    rows=st.integers(1, 9),
    inputs=st.integers(8, 96),
    outputs=st.integers(1, 70),
    bias=st.booleans(),
    seed=st.integers(0, 9),
)
@pytest.mark.parametrize(("make", "tolerance"), [(Gemm, 1e-6), (Packed, 1e-6), (eight_bits, 0.01)])
def test_the_reference_is_the_formula(make, tolerance: float, rows, inputs, outputs, bias, seed):
    rows = 1 if make is eight_bits else rows  # its rows share one scale
    x, weight, offset = problem(rows, inputs, outputs, bias=bias, seed=seed)
    made, wanted = make(weight, offset), Reference(weight, offset)
    allowed = tolerance * (x.norm(dim=1, keepdim=True) * weight.values.norm(dim=1) + 1)
    assert ((made(x) - wanted(x)).abs() <= allowed).all()


@pytest.mark.parametrize("make", [Gemm, Packed, eight_bits])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_keep_their_dtype(make, dtype: torch.dtype):
    if make is Packed and dtype not in packed_dtypes():
        pytest.skip("oneDNN has no bfloat16 on this CPU")
    x, weight, _ = problem(1, 64, 32, bias=False, seed=2)
    assert make(FloatWeight(weight.values.to(dtype)), None)(x.to(dtype)).dtype == dtype


def bound(table: OperatorTable, weight: Weight, role: str = "", stage: str = "packed") -> Linear:
    return bind_linear(table, OperatorKey(op_name="linear", model_name="llama", layer_role=role), weight, None)[stage]


def test_a_float_weight_is_read_as_it_is_unless_it_may_be_converted():
    x, weight, _ = problem(4, 256, 64, bias=False, seed=1)
    wanted = Reference(weight, None)
    assert type(bound(built_in_table(), weight)) is Packed
    asked = built_in_table().overlaid(TableEntry(OperatorKey(op_name="linear"), "int8"))
    assert error(bound(asked, weight)(x[:1]), wanted(x[:1])) < 1e-6
    converted = bound(built_in_table().converting("int8"), weight, stage="decode")
    assert 1e-3 < error(converted(x[:1]), wanted(x[:1])) < 0.02


def test_a_single_row_is_in_eight_bits_and_more_rows_are_exact():
    x, weight, _ = problem(9000, 64, 32, bias=False, seed=1)
    made, wanted = bound(built_in_table().converting("int8"), weight, stage="decode"), Reference(weight, None)
    assert isinstance(made, ByRows)
    assert error(made(x[:1]), wanted(x[:1])) > 1e-3
    for rows in (2, 3, 100, 9000):
        assert error(made(x[:rows]), wanted(x[:rows])) < 1e-6
    assert made.nbytes == Packed(weight, None).nbytes + weight.values.numel()


@pytest.mark.parametrize("stage", ["prefill", "packed"])
def test_only_decode_passes_use_eight_bits(stage):
    """A prompt's last layer and head see single rows too; an overlay that was tuned for a row does not reach them."""
    x, weight, _ = problem(1, 64, 32, bias=False, seed=1)
    table = built_in_table().converting("int8")
    tuned = table.overlaid(
        TableEntry(OperatorKey(op_name="linear", model_name="llama", shape_sig="m=1|n=32|e=64"), "int8")
    )
    forced = table.forcing(linear="int8")
    for each in (table, tuned, forced):
        assert error(bound(each, weight, stage=stage)(x), Reference(weight, None)(x)) < 1e-6
        assert error(bound(each, weight, stage="decode")(x), Reference(weight, None)(x)) > 1e-3


@pytest.mark.parametrize("rows", [1, 5])
def test_a_large_weight_is_read_packed_whatever_the_rows(rows):
    x, weight, offset = problem(rows, 1024, 1030, bias=True, seed=4)
    assert error(Packed(weight, offset)(x), Reference(weight, offset)(x)) < 1e-6


def test_entries_for_rows_and_roles_are_kept_to():
    x, weight, _ = problem(40, 16, 8, bias=False, seed=1)
    calls: list[str] = []

    def named(name: str) -> Implementation:
        def make(weight, bias):
            calls.append(f"make {name}")
            return lambda x: calls.append(name)

        return Implementation(op_name="linear", impl_id=name, function=make)

    entries = [
        TableEntry(OperatorKey(op_name="linear"), "a"),
        TableEntry(OperatorKey(op_name="linear", shape_sig="m=4|n=8|e=16"), "b"),
    ]
    table = OperatorTable([named("reference"), named("a"), named("b")], entries)
    made = bound(table, weight)
    for rows in (1, 2, 3, 4, 5, 40):
        made(x[:rows])
    assert calls == ["make a", "make b", "a", "a", "b", "b", "a", "a"]
    calls.clear()
    table = table.overlaid(TableEntry(OperatorKey(op_name="linear", layer_role="head"), "reference"))
    bound(table.overlaid(TableEntry(OperatorKey(op_name="linear", layer_role="head"), "b")), weight, "head")(x)
    assert calls == ["make b", "b"]


def test_a_stage_has_what_its_entries_name_and_shares_the_rest():
    _, weight, _ = problem(1, 16, 8, bias=False, seed=1)
    decode = TableEntry(OperatorKey(op_name="linear", stage="decode", shape_sig="m=1"), "gemm")
    made = bind_linear(
        built_in_table().overlaid(decode), OperatorKey(op_name="linear", model_name="llama"), weight, None
    )
    assert isinstance(made["prefill"], Packed) and made["prefill"] is made["packed"]
    assert isinstance(made["decode"], ByRows) and made["prefill"] in made["decode"]._by_class
    plain = bind_linear(built_in_table(), OperatorKey(op_name="linear", model_name="llama"), weight, None)
    assert plain["prefill"] is plain["packed"] is plain["decode"]


def test_a_single_stage_is_bound_and_its_choices_are_cached(monkeypatch):
    _, weight, _ = problem(1, 16, 8, bias=False, seed=1)
    table = built_in_table()
    context = OperatorKey(op_name="linear", model_name="tiny", layer_role="down", stage="decode")
    assert type(bind_linear_stage(table, context, weight, None)) is type(
        bind_linear(table, context, weight, None)["decode"]
    )
    monkeypatch.setattr(OperatorTable, "objection", None)  # nothing is weighed again
    bind_linear_stage(table, context, weight, None)
    with pytest.raises(TypeError):
        bind_linear_stage(built_in_table(), context, weight, None)


def test_implementations_report_their_bytes():
    _, weight, _ = problem(1, 64, 32, bias=False, seed=3)
    large = FloatWeight(torch.zeros(1025, 1024))
    assert Gemm(weight, None).nbytes == weight.nbytes
    assert Packed(weight, None).nbytes == 2 * weight.nbytes and Packed(large, None).nbytes == large.nbytes
    assert eight_bits(weight, None).nbytes == weight.values.numel()


@pytest.mark.parametrize(
    "some", [{"stage": "decode"}, {"shape_sig": "m=1"}, {"stage": "prefill", "shape_sig": "m=512"}]
)
def test_a_quantised_weight_is_never_in_memory_twice(some):
    """An entry for some stages or rows must name what serves the others."""
    floats = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    context = OperatorKey(op_name="linear", model_name="llama", layer_role="down")
    several = (
        r"^operators: linear down of llama \[64, 64\]: .* several are chosen .* run `edgeflow tune` again with it$"
    )
    for weight, impl_id in ((AwqWeight.nearest(floats, 32), "dequantised"), (Int8Weight.of(floats), "torch_int8")):
        key = OperatorKey(op_name="linear", hw_profile="cpu", weight=weight.format)
        everywhere, there = TableEntry(key, impl_id), TableEntry(replace(key, **some), impl_id)
        (made,) = set(bind_linear(built_in_table().overlaid(everywhere, there), context, weight, None).values())
        assert not isinstance(made, ByRows) and made.nbytes == weight.nbytes
        other = TableEntry(key, "reference")
        with pytest.raises(ConfigError, match=several):
            bind_linear(built_in_table().overlaid(other, there), context, weight, None)


def test_one_stage_of_a_quantised_weight_has_one_implementation():
    weight = AwqWeight.nearest(torch.randn(64, 64), 32)
    context = OperatorKey(op_name="linear", model_name="smollm", layer_role="qkv", stage="prefill")
    rows = TableEntry(OperatorKey(op_name="linear", weight="awq", shape_sig="m=4"), "reference")
    with pytest.raises(ConfigError, match=r"keeps its own copy of a weight of format awq.*reference"):
        bind_linear_stage(built_in_table().overlaid(rows), context, weight, None)
