"""The proof of an operator is worth something: candidates pass it, and implementations that are a little wrong fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from edgeflow.kernels import linear, rope_write_kv
from edgeflow.kernels.awq import AWQ, AwqWeight
from edgeflow.kernels.kv.layout import Span
from edgeflow.kernels.linear import Fp8Emulated
from edgeflow.kernels.row_operators import swiglu_reference
from edgeflow.kernels.table.dimensions import kv_formats
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.kernels.weights import FLOAT, Fp8Weight, Int8Weight
from edgeflow.lab.trials import cases
from edgeflow.lab.trials.cases import Heads, TrialCase
from edgeflow.lab.trials.catalogue import small_cases
from edgeflow.lab.trials.compare import ReferenceOutputs, tolerance
from tests.kernels.deviation import deviation
from tests.kernels.wrong_kernels import (
    WRONG,
    features_in_the_dtype,
    in_six_bits,
    products_in_the_dtype,
    queries_in_the_dtype,
    sums_in_the_dtype,
    without_key,
)
from tests.kernels.wrong_visibility import SIGHTS, changed

CPU = torch.device("cpu")
HERE = Hardware.of(CPU)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TABLE = built_in_table()
ON_CPU = [
    (op_name, kv, weight, impl_id)
    for op_name in TABLE.operators
    for kv in kv_formats(op_name)
    for weight in (FLOAT, AWQ, "int8")
    if small_cases(op_name, kv, weight)
    for impl_id in TABLE.candidates(op_name, kv, weight)
    if impl_id not in ("reference", "triton")
]


@cache
def posed(op_name: str, kv: str = "", weight: str = FLOAT) -> list[TrialCase]:
    """The cases of an operator, the same objects each time."""
    return small_cases(op_name, kv, weight)


@cache
def expected(case: TrialCase, dtype: torch.dtype) -> ReferenceOutputs:
    return ReferenceOutputs.of(case, reference(case.op_name, case.kv), CPU, dtype)


def reference(op_name: str, kv: str = "") -> Callable:
    return TABLE.implementation(op_name, "reference", kv).load()


def share(case: TrialCase, function: Callable, dtype: torch.dtype, weight: str = "", own: float = 0.0) -> float:
    """The deviation over what is tolerated."""
    return expected(case, dtype).deviation(function) / tolerance(case, dtype, weight, own)


def worst_of(
    cases: list[TrialCase], function: Callable, dtype: torch.dtype, weight: str = "", own: float = 0.0
) -> float:
    return max(share(case, function, dtype, weight, own) for case in cases)


def fails(cases: list[TrialCase], function: Callable, dtype: torch.dtype) -> bool:
    """True if a case clearly separates the function from a correct one; later cases are not run then."""
    return any(share(case, function, dtype) > 1.5 for case in cases)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op_name", "kv", "weight", "impl_id"), ON_CPU)
def test_candidates_pass(op_name, kv, weight, impl_id, dtype):
    candidate = TABLE.implementation(op_name, impl_id, kv)
    taken = [case for case in posed(op_name, kv, weight) if not candidate.objection(HERE, dtype, case.signed()[1])]
    assert len(taken) >= 3 or candidate.objection(HERE, dtype)
    if taken:
        assert worst_of(taken, candidate.load(), dtype, candidate.weight, candidate.deviation) <= 1


@pytest.mark.parametrize(("op_name", "kv"), [(name, kv) for name in TABLE.operators for kv in kv_formats(name)])
def test_every_operator_has_problems_the_table_can_sign(op_name, kv):
    assert len(posed(op_name, kv)) >= 3
    for case in posed(op_name, kv):
        stage, shape_sig = case.signed()
        assert case.op_name == op_name and "m=" in shape_sig + "m=" * ("shift" in op_name)
        assert stage in ("", "prefill", "decode", "packed")


@pytest.mark.parametrize("kv", ["dense", "int8", "latent"])
@pytest.mark.parametrize("name", SIGHTS)
def test_a_kernel_that_sees_something_else_fails(name, kv):
    cases = [case for case in posed("packed_attention", kv) if not case.causal]
    for dtype in DTYPES:
        assert fails(cases, changed(SIGHTS[name]), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_implementation_fails(name, dtype):
    operator, function = WRONG[name]
    op_name, _, kv = operator.partition(" ")
    assert fails(posed(op_name, kv), function, dtype)


def test_a_single_key_lost_from_a_long_context_fails():
    case = posed("packed_attention", "dense")[-1]
    assert case.signed()[1].startswith("m=8|t=32768")
    assert share(case, without_key(300 * 64 + 24), torch.bfloat16) > 3  # of block 300, the head 4 sees place 24


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("op_name", "function"),
    [
        ("fold_memory", features_in_the_dtype),
        ("fold_memory", sums_in_the_dtype),
        ("read_memory", queries_in_the_dtype),
        ("read_memory", products_in_the_dtype),
    ],
)
def test_a_memory_is_computed_in_float32_whatever_the_dtype(op_name, function, dtype):
    own = [case for case in posed(op_name) if function is not queries_in_the_dtype or not by_head(case)]
    assert worst_of(own, function, dtype) > 1.5
    assert worst_of(own, function, torch.float32) <= 1, "nothing else is wrong with it"


def by_head(case: TrialCase) -> bool:
    """True for a case of `read_memory` whose heads have an MLP each."""
    return len(case.problem(CPU, torch.float32).arguments[2].gate.w1) > 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_eight_bits_must_be_eight(dtype):
    single = [case for case in posed("linear") if "m=1|" in case.signed()[1]]
    assert worst_of(single, in_six_bits, dtype, "int8") > 1.2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("format", "bound"), [(Int8Weight, linear.Int8), (Fp8Weight, Fp8Emulated)])
def test_a_weight_with_the_scale_of_another_output_fails(format, bound, dtype):
    """The scale of the next output; a single output has no other."""

    def wrong(weight, bias):
        eight = format.of(weight.values)
        return bound(replace(eight, scale=eight.scale.roll(1)), bias)

    single = [case for case in posed("linear") if "m=1|" in (sizes := case.signed()[1]) and "n=1|" not in sizes]
    assert worst_of(single, wrong, dtype, format.format) > 1.2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", [{"zeros": 1}, {"scales": 0.98}, {"group": 0}])
def test_a_weight_of_4_bits_with_another_zero_scale_or_group_fails(wrong, dtype):
    def changed(weight: AwqWeight, bias):
        zeros = weight.zeros + wrong.get("zeros", 0)
        scales = weight.scales * wrong.get("scales", 1.0)
        if "group" in wrong:
            scales = scales.roll(1, 0)
        return linear.Dequantised(replace(weight, zeros=zeros, scales=scales), bias)

    assert worst_of(posed("linear", weight=AWQ), changed, dtype, AWQ) > 1.2


def test_one_wrong_row_of_many_counts():
    def wrong(x):
        out = swiglu_reference(x)
        out[-1, 0] += 0.5
        return out

    case = cases.swiglu(500, 8)
    assert deviation(case, wrong, swiglu_reference, CPU, torch.bfloat16) > tolerance(case, torch.bfloat16)


def test_a_row_that_must_not_be_written_counts():
    """Memory beyond the rows of a pass is NaN and stays so."""

    def wrong(qkv, heads, kv_heads, rows, layer):
        q = rope_write_kv.reference(qkv, heads, kv_heads, rows, layer)
        layer.keys[-1, -1] = 0
        return q

    case = cases.rope_write_kv([Span(0, 0, 3)], Heads(2, 2, 8))
    assert deviation(case, wrong, rope_write_kv.reference, CPU, torch.float32) == float("inf")


def test_a_missing_row_counts():
    case = cases.swiglu(3, 8)
    assert deviation(case, lambda x: swiglu_reference(x)[:2], swiglu_reference, CPU, torch.float32) == float("inf")
