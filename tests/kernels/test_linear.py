"""LINEAR: every implementation against the formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.kernels.linear import Float, Int8OneRow, MakeLinear, Reference


def problem(rows: int, inputs: int, outputs: int, *, bias: bool, seed: int):
    generator = torch.Generator().manual_seed(seed)
    x, weight, residual = (
        torch.randn(*shape, generator=generator) for shape in ((rows, inputs), (outputs, inputs), (rows, outputs))
    )
    return x, weight, torch.randn(outputs, generator=generator) if bias else None, residual


def error(made: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((made - wanted).norm() / wanted.norm())


@given(
    rows=st.integers(1, 5),
    inputs=st.integers(8, 96),
    outputs=st.integers(1, 70),
    bias=st.booleans(),
    seed=st.integers(0, 9),
)
@pytest.mark.parametrize(("make", "tolerance"), [(Float, 1e-6), (Int8OneRow, 0.01)])
def test_it_is_the_formula(make: MakeLinear, tolerance: float, rows, inputs, outputs, bias, seed):
    x, weight, offset, residual = problem(rows, inputs, outputs, bias=bias, seed=seed)
    made, wanted = make(weight, offset), Reference(weight, offset)
    allowed = tolerance * (x.norm(dim=1, keepdim=True) * weight.norm(dim=1) + 1)
    assert ((made(x) - wanted(x)).abs() <= allowed).all()
    assert ((made(x, residual.clone()) - wanted(x, residual)).abs() <= allowed).all()


def test_one_row_is_in_eight_bits_and_more_rows_are_exact():
    x, weight, _, _ = problem(2, 256, 64, bias=False, seed=1)
    made, wanted = Int8OneRow(weight, None), Reference(weight, None)
    assert 1e-3 < error(made(x[:1]), wanted(x[:1])) < 0.02
    assert error(made(x), wanted(x)) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_keep_their_dtype_and_the_residual_its_values(dtype: torch.dtype):
    x, weight, _, residual = (
        each.to(dtype) if each is not None else None for each in problem(1, 64, 32, bias=False, seed=2)
    )
    made = Int8OneRow(weight, None)
    before = residual.clone()
    assert made(x, residual).dtype == dtype
    assert torch.equal(before, residual)


def test_memory_is_told():
    _, weight, _, _ = problem(1, 64, 32, bias=False, seed=3)
    assert Float(weight, None).nbytes == weight.nbytes
    assert Int8OneRow(weight, None).nbytes == weight.nbytes + weight.numel()
