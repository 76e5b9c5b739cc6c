"""Weights as values: what each format holds, how they are fused and converted, and which implementations take them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.kernels.linear import Fp8Emulated, Int8, Reference, TorchInt8
from edgeflow.kernels.native import linear as native
from edgeflow.kernels.native.linear import missing
from edgeflow.kernels.table.bind_linear import bind_linear
from edgeflow.kernels.table.built_in import BUILT_IN
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.table.overlay import OverlayEntry
from edgeflow.kernels.weights import (
    CONVERSIONS,
    FloatWeight,
    Fp8Weight,
    Int8Weight,
    Weight,
    converted,
    dequantised,
    fp8_rows,
)
from edgeflow_client.errors import CheckpointError

LINEAR = OperatorKey(op_name="linear", model_name="llama")
FORMATS = [FloatWeight, Int8Weight.of, Fp8Weight.of]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def floats(outputs: int, inputs: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Outputs of very different sizes, one of them zero."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(outputs, inputs, generator=generator) * torch.logspace(-3, 3, outputs)[:, None]
    values[0] = 0
    return values.to(dtype)


def parts(weight: Weight) -> list[torch.Tensor]:
    """Everything a weight holds, as bytes that can be compared."""
    scale = getattr(weight, "scale", None)
    values = weight.values.view(torch.uint8) if weight.format == "fp8" else weight.values
    return [values] if scale is None else [values, scale]


def same(one: Weight, other: Weight) -> bool:
    return all(torch.equal(a, b) for a, b in zip(parts(one), parts(other), strict=True)) and one.dtype == other.dtype


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(outputs=st.lists(st.integers(1, 9), min_size=1, max_size=3), inputs=st.integers(1, 33), seed=st.integers(0, 9))
def test_conversion_and_concatenation_commute(make, dtype, outputs, inputs, seed):
    each = [floats(count, inputs, dtype, seed + index) for index, count in enumerate(outputs)]
    first, *others = map(make, each)
    fused = first.cat(others)
    assert same(fused, make(torch.cat(each))) and type(fused) is type(first)
    assert fused.shape == (sum(outputs), inputs) and fused.dtype == dtype
    assert fused.nbytes == sum(weight.nbytes for weight in (first, *others))


def test_formats_are_not_mixed():
    values = floats(4, 8)
    for first in (FloatWeight(values), Int8Weight.of(values)):
        with pytest.raises(CheckpointError, match=rf"weights of several formats: {first.format}, fp8"):
            first.cat([Fp8Weight.of(values), first])


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 99), inputs=st.integers(1, 70))
def test_int8_is_what_torch_quantises_to(dtype, seed, inputs):
    values = floats(17, inputs, dtype, seed)
    wide = values.float()
    scale = wide.abs().amax(dim=1).clamp_(min=1e-8).div_(127)
    naive = torch.quantize_per_channel(wide, scale.double(), torch.zeros(17, dtype=torch.long), 0, torch.qint8)
    weight = Int8Weight.of(values)
    assert torch.equal(weight.values, naive.int_repr()) and torch.equal(weight.scale, scale)
    assert torch.equal(weight.floats(), naive.dequantize().to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_is_what_rows_are_rounded_to(dtype):
    values = floats(17, 40, dtype)
    weight, (rows, scale) = Fp8Weight.of(values), fp8_rows(values)
    assert torch.equal(weight.values.float(), rows.float()) and torch.equal(weight.scale, scale[:, 0])
    assert torch.equal(weight.floats(), dequantised(rows, scale).to(dtype))


@pytest.mark.parametrize(("to", "error"), [("int8", 0.5 / 127), ("fp8", 1 / 16)])
def test_converted_weights_are_near_the_originals(to, error):
    values = floats(9, 200)
    weight = converted(FloatWeight(values), to)
    assert (weight.floats() - values).abs().amax(1).le(error * values.abs().amax(1)).all()
    assert converted(weight, to) is weight and weight.format == to
    assert weight.nbytes == values.numel() + 4 * 9


def test_only_float_weights_are_converted():
    weight = FloatWeight(floats(4, 8))
    assert converted(weight, "float") is weight and weight.floats() is weight.values
    with pytest.raises(ValueError, match="of format fp8 cannot become one of format int8"):
        converted(Fp8Weight.of(weight.values), "int8")


def of_stages(table: OperatorTable, weight: Weight) -> list[type]:
    bound = bind_linear(table, LINEAR, weight, None)
    return [type(bound[stage]) for stage in ("prefill", "packed", "decode")]


def test_a_weight_that_comes_in_a_format_is_served_without_being_allowed_to():
    """By what reads the format, else by the reference, never by what reads another one."""
    values = floats(32, 64)
    assert of_stages(built_in_table(), Fp8Weight.of(values)) == [Fp8Emulated] * 3
    eight = TorchInt8 if missing() else native.NativeInt8
    assert of_stages(built_in_table(), Int8Weight.of(values)) == [eight] * 3
    assert of_stages(built_in_table().converting("int8"), Fp8Weight.of(values)) == [Fp8Emulated] * 3


def test_packed_float_products_do_not_serve_weights_in_8_bits():
    """It would hold a second copy beside that of an embedding; what reads them as they lie converts none."""
    held, packs = (built_in_table().implementation("linear", name) for name in ("torch_int8", "int8"))
    assert held.takes_weight("int8") and not held.takes_weight("float")
    assert packs.takes_weight("float") and not packs.takes_weight("int8")
    table = built_in_table().converting("int8").forcing(linear="torch_int8")
    assert of_stages(table, FloatWeight(floats(32, 64))) == [Reference] * 3


MADE = {"int8": Int8, "fp8": Fp8Emulated}


@pytest.mark.parametrize("to", CONVERSIONS)
def test_a_converted_weight_computes_what_one_of_the_format_does(to):
    values, x = floats(32, 64), torch.randn(1, 64)
    mine = bind_linear(built_in_table().converting(to), LINEAR, FloatWeight(values), None)["decode"]
    other = MADE[to](converted(FloatWeight(values), to), None)
    assert torch.equal(mine(x), other(x))
    assert not torch.equal(mine(x), Reference(FloatWeight(values), None)(x))


def test_an_entry_may_name_the_format_that_weights_come_in():
    entry = OverlayEntry(op_name="linear", weight="float", impl_id="reference").key
    assert entry.matches(OperatorKey(op_name="linear", weight="float"))
    assert not entry.matches(OperatorKey(op_name="linear", weight="int8"))
    assert "weight=float" in entry.text
    for each in BUILT_IN:
        assert OverlayEntry(impl_id="any", weight=each.weight).weight == each.weight
