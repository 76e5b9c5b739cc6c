"""Rounding against AutoAWQ's formula, written out number by number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.kernels.awq import AwqWeight, rounded

FLOATS = {torch.float32: np.float32, torch.float16: np.float16}


def twin(group: np.ndarray, kind: type[np.floating]) -> tuple[list[int], int, np.floating]:
    """Codes, zero and scale of one group of weights; every operation rounds to `kind`."""
    extent = max(kind(group.max() - group.min()), kind(1e-5))
    scale = kind(extent / kind(15))
    with np.errstate(over="ignore"):  # a constant group in float16: infinite quotients are clamped
        zero = min(max(-np.rint(kind(group.min() / scale)), 0), 15)
        codes = [min(max(kind(np.rint(kind(each / scale)) + kind(zero)), 0), 15) for each in group]
    return [int(code) for code in codes], int(zero), scale


def twin_values(group: np.ndarray, kind: type[np.floating]) -> list[float]:
    codes, zero, scale = twin(group, kind)
    return [float(kind(kind(code - zero) * scale)) for code in codes]


@st.composite
def groups(draw: st.DrawFn) -> np.ndarray:
    """Groups of 32 weights: around zero, of one sign, constant, and so small that the range is clamped."""
    seed, size = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([1e-7, 1e-3, 0.05, 3.0]))
    shift, flat = draw(st.sampled_from([0.0, 1.0, -4.0])), draw(st.booleans())
    values = np.random.default_rng(seed).standard_normal(32) * (0 if flat else size) + shift * size
    return values.astype(np.float16)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(made=groups())
@settings(max_examples=60, deadline=None)
def test_values_equal_the_formula_bit_for_bit(made: np.ndarray, dtype: torch.dtype):
    weight = torch.from_numpy(made).to(dtype)[None]
    expected = twin_values(made.astype(FLOATS[dtype]), FLOATS[dtype])
    assert rounded(weight, 32).values[0].tolist() == expected


@given(made=groups())
@settings(max_examples=60, deadline=None)
def test_stored_numbers_are_those_of_float16(made: np.ndarray):
    found = AwqWeight.nearest(torch.from_numpy(made)[None].float(), 32)
    codes, zero, scale = twin(made, np.float16)
    assert (found.q[0].tolist(), found.zeros[0].tolist(), found.scales[0].item()) == (codes, [zero], float(scale))
    assert found.floats()[0].tolist() == rounded(torch.from_numpy(made)[None], 32).values[0].tolist()


@given(made=groups())
@settings(max_examples=60, deadline=None)
def test_codes_from_the_dequantised_weight_are_the_same(made: np.ndarray):
    """AutoAWQ's packing derives the codes from the dequantised weight: round((w + zero * scale) / scale) in float16."""
    found = AwqWeight.nearest(torch.from_numpy(made)[None], 32)
    again = torch.round((found.floats() + found.zeros.half() * found.scales) / found.scales)
    assert torch.equal(again.to(torch.uint8), found.q)


def test_float32_gives_the_stored_numbers_but_for_a_rounding():
    """What a search tries is at most one step beside what is stored, and seldom that."""
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(0)).half().float()
    tried, stored = rounded(weight, 32), AwqWeight.nearest(weight, 32)
    apart = (
        (tried.q - tried.zeros).flatten(1) - (stored.q.view(64, 4, 32) - stored.zeros[..., None].float()).flatten(1)
    ).abs()
    assert apart.max() == 1 and apart.mean() < 0.01
    assert ((tried.scales.flatten(1) / stored.scales.float()).log2().abs() <= 2**-9).all()


def test_groups_are_neighbouring_inputs():
    weight = torch.randn(3, 128, generator=torch.Generator().manual_seed(0))
    found = AwqWeight.nearest(weight, 64)
    assert found.q.shape == (3, 128) and found.scales.shape == found.zeros.shape == (3, 2)
    alone = AwqWeight.nearest(weight[1:2, 64:], 64)
    assert torch.equal(found.q[1, 64:], alone.q[0])
    assert found.scales[1, 1] == alone.scales[0, 0] and found.zeros[1, 1] == alone.zeros[0, 0]


def test_a_group_of_one_sign_saturates():
    """The range is not widened to contain 0, as in AutoAWQ."""
    assert rounded(torch.linspace(0.5, 1.0, 32)[None], 32).values.amax() == pytest.approx(0.5)
