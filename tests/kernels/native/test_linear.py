"""LINEAR in C++ for rows in 8 bits, in every instruction set that this processor has, against a naive twin."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from edgeflow.kernels.awq import AWQ, AwqWeight
from edgeflow.kernels.linear import Dequantised, Linear, Reference
from edgeflow.kernels.native.linear import BLOCK, NativeInt4, NativeInt8, instruction_sets, missing
from edgeflow.kernels.table.built_in import ROWS_OF_8_BITS
from edgeflow.kernels.weights import Int8Weight, Weight
from edgeflow.lab.trials.catalogue import small_cases
from edgeflow.lab.trials.compare import tolerance
from tests.kernels.awq_weights import random_weight
from tests.kernels.deviation import deviation

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "built")
SETS = instruction_sets() if not missing() else ()
Made = Callable[[str], Linear]


def rounded(x: Tensor, steps: int = 127) -> Tensor:
    """Rows in 8 bits: each block of 32 inputs in steps of a 127th of its largest size, ties to even."""
    blocks = x.float().unflatten(1, (-1, BLOCK))
    step = blocks.abs().amax(2, keepdim=True) / steps
    return ((blocks / step.clamp(min=1e-30)).round() * step).flatten(1)


def twin(weight: Weight, bias: Tensor | None, x: Tensor) -> Tensor:
    """The product of rounded rows in float64."""
    exact = weight.exact() if isinstance(weight, AwqWeight) else weight.floats()
    out = rounded(x).double() @ exact.double().t()
    return out if bias is None else out + bias.double()


def eight_bits(outputs: int, inputs: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Int8Weight:
    return Int8Weight.of(rows(outputs, inputs, seed).to(dtype))


def rows(count: int, inputs: int, seed: int = 0) -> Tensor:
    return torch.randn(count, inputs, generator=torch.Generator().manual_seed(seed))


def off(linear: Linear, weight: Weight, bias: Tensor | None, x: Tensor) -> float:
    """The largest difference from the twin, as a share of the sizes of a row and of an output's weights."""
    sizes = x.norm(dim=1, keepdim=True) * weight.floats().norm(dim=1) + (0 if bias is None else bias.abs())
    return float(((linear(x) - twin(weight, bias, x)).abs() / sizes.clamp(min=1e-9)).max())


@pytest.mark.parametrize("instruction_set", SETS)
@given(
    count=st.integers(1, 19),
    outputs=st.integers(1, 40),
    groups=st.integers(1, 3),
    group=st.sampled_from([32, 64, 128]),
    bias=st.booleans(),
    seed=st.integers(0, 9),
)
def test_a_product_is_that_of_rounded_rows(instruction_set: str, count, outputs, groups, group, bias, seed):
    """Rows that are rounded down are off by 1e-3 or more."""
    x, offset = rows(count, group * groups, seed), rows(1, outputs, seed)[0] if bias else None
    q = torch.randint(
        0, 16, (outputs, group * groups), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    like = random_weight(8 * -(-outputs // 8), group * groups, group, seed=seed)
    four = AwqWeight.of_codes(q, like.scales[:outputs], like.zeros[:outputs], torch.float32)
    assert off(NativeInt4(four, offset, instruction_set), four, offset, x) < 1e-6
    eight = eight_bits(outputs, group * groups, seed)
    assert off(NativeInt8(eight, offset, instruction_set), eight, offset, x) < 1e-6


@pytest.mark.parametrize("instruction_set", SETS)
def test_the_largest_numbers_do_not_overflow(instruction_set: str):
    x = torch.ones(1, 256)
    four = AwqWeight.of_codes(
        torch.full((16, 256), 15, dtype=torch.uint8),
        torch.ones(16, 2).half(),
        torch.zeros(16, 2, dtype=torch.uint8),
        torch.float32,
    )
    eight = Int8Weight(torch.full((16, 256), -127, dtype=torch.int8), torch.ones(16), torch.float32)
    assert torch.equal(NativeInt4(four, None, instruction_set)(x), torch.full((1, 16), 256 * 15.0))
    assert torch.equal(NativeInt8(eight, None, instruction_set)(x), torch.full((1, 16), 256 * -127.0))


def made(instruction_set: str, dtype: torch.dtype = torch.float32) -> list[Linear]:
    """One of each, [40, 128]."""
    four = random_weight(40, 128, 64, dtype=dtype)
    return [
        NativeInt4(four, None, instruction_set),
        NativeInt8(eight_bits(40, 128, dtype=dtype), None, instruction_set),
    ]


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_the_others(instruction_set: str, dtype: torch.dtype):
    x = rows(19, 128).to(dtype)
    for linear in made(instruction_set, dtype):
        found = linear(x)
        assert found.dtype == dtype and torch.equal(found, torch.cat([linear(row[None]) for row in x]))
        assert linear(x[:0]).shape == (0, 40)
        assert torch.equal(
            linear(rows(19, 256).to(dtype)[:, ::2]), linear(rows(19, 256).to(dtype)[:, ::2].contiguous())
        )


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_stays_visible(instruction_set: str, bad: float):
    x = rows(3, 128)
    x[1, 77], x[2] = bad, 0
    for linear in made(instruction_set):
        found = linear(x)
        assert found[1].isnan().all() and found[0].isfinite().all() and not found[2].any()


def test_several_threads_may_call_at_once():
    x, (four, _) = rows(8, 128), made(SETS[0])
    wanted = four(x)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(found, wanted) for found in pool.map(four, [x] * 64))


def test_no_other_form_of_the_weight_is_kept():
    weight, eight = random_weight(32, 128, 64), eight_bits(32, 128)
    assert NativeInt4(weight, None).nbytes == weight.nbytes
    shared = NativeInt8(eight, None)
    assert shared.nbytes == eight.nbytes and shared._parts[0].data_ptr() == eight.values.data_ptr()


def worst(wrong: Callable[[AwqWeight, Tensor | None], Callable[[Tensor], Tensor]]) -> float:
    """The largest deviation of a wrong product over what is tolerated."""
    allowed = [tolerance(case, torch.float32, AWQ, ROWS_OF_8_BITS) for case in small_cases("linear", weight=AWQ)]
    found = [
        deviation(case, wrong, Reference, torch.device("cpu"), torch.float32)
        for case in small_cases("linear", weight=AWQ)
    ]
    return max(mine / limit for mine, limit in zip(found, allowed, strict=True))


def test_rows_of_7_bits_are_not_tolerated():
    assert worst(lambda weight, bias: lambda x: Reference(weight, bias)(rounded(x, steps=127))) <= 1
    assert worst(lambda weight, bias: lambda x: Reference(weight, bias)(rounded(x, steps=63))) > 1.2


@pytest.mark.parametrize("field", ["scales", "zeros"])
def test_the_scale_or_zero_of_another_group_is_not_tolerated(field: str):
    def wrong(weight: AwqWeight, bias: Tensor | None) -> Linear:
        return Dequantised(replace(weight, **{field: getattr(weight, field).roll(1, 1)}), bias)

    assert worst(wrong) > 5


def test_rows_of_another_width_are_rejected():
    products = [NativeInt4(random_weight(16, 64, 32), None), NativeInt8(Int8Weight.of(torch.randn(16, 64)), None)]
    for product in products:
        for shape in [(1, 4096), (2, 32), (64,)]:
            with pytest.raises(ValueError, match=r"expected \[m, 64\]"):
                product(torch.ones(shape))
