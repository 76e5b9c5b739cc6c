"""A linear with a GELU after it, against the formula, for what serves on this device and for the plain one."""

from __future__ import annotations

import pytest
import torch

from edgeflow.kernels.linear import GemmGelu, PackedGelu, linear_gelu, packed_dtypes
from edgeflow.kernels.weights import FloatWeight

FORMULAS = {
    "none": lambda x: x * torch.erfc(-x / 2**0.5) / 2,
    "tanh": lambda x: x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("approximate", FORMULAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("make", [linear_gelu, GemmGelu])
def test_the_reference_is_the_formula(make, dtype, approximate):
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in ((70, 48), (33, 48), (33,)))
    sums = x.double() @ weight.double().t() + bias.double()
    found = make(FloatWeight(weight), bias, approximate)(x)
    wanted = FORMULAS[approximate](sums)
    assert found.dtype == dtype
    rounding = {torch.float32: 2e-6, torch.bfloat16: 1e-2}[dtype]
    assert float((found.double() - wanted).norm() / wanted.norm()) < rounding


def test_weights_are_packed_where_onednn_multiplies_them():
    for dtype in (torch.float32, torch.float64):
        served = linear_gelu(FloatWeight(torch.ones(4, 8, dtype=dtype)), None, "none")
        assert isinstance(served, PackedGelu if dtype in packed_dtypes() else GemmGelu)
        assert served.nbytes == 32 * dtype.itemsize
