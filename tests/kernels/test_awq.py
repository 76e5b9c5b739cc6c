"""Weights of 4 bits: AutoAWQ's GEMM layout, how they lie in memory, and what they stand for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.kernels.awq import AwqWeight, packed, unpacked
from edgeflow.kernels.linear import Dequantised, Reference
from edgeflow.kernels.weights import FloatWeight
from edgeflow_client.errors import CheckpointError
from tests.kernels.awq_weights import random_gemm, random_weight


def naive(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """[N, E], number by number, as the format is described."""
    inputs, outputs = qweight.shape[0], scales.shape[1]
    place = [0, 4, 1, 5, 2, 6, 3, 7]  # the nibble of each output in its word

    def code(words: torch.Tensor, row: int, output: int) -> int:
        word = int(words[row, output // 8]) % (1 << 32)
        return word >> 4 * place[output % 8] & 15

    values = torch.zeros(outputs, inputs, dtype=torch.float16)
    for n in range(outputs):
        for e in range(inputs):
            step = code(qweight, e, n) - code(qzeros, e // group, n)
            values[n, e] = step * float(scales[e // group, n])
    return values


@pytest.mark.parametrize("group", [32, 64, 128])
def test_the_floats_are_those_of_the_format(group: int):
    gemm = random_gemm(16, 2 * group, group)
    weight = AwqWeight.of_gemm(*gemm, torch.float32)
    assert (weight.shape, weight.group, weight.dtype) == ((16, 2 * group), group, torch.float32)
    assert torch.equal(weight.floats(), naive(*gemm, group).float())
    assert torch.equal(weight.exact().half().float(), weight.floats()) and weight.exact().dtype == torch.float32


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from([32, 64, 128]), st.integers(0, 9))
def test_the_layout_can_be_written_back(words: int, groups: int, group: int, seed: int):
    gemm = random_gemm(8 * words, group * groups, group, seed)
    written = AwqWeight.of_gemm(*gemm, torch.float32).gemm()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(written, gemm, strict=True))
    codes = unpacked(gemm[0])
    assert codes.max() <= 15 and torch.equal(packed(codes), gemm[0])


def test_codes_lie_in_blocks_of_32_inputs():
    weight = random_weight(8, 64, 32)
    q = weight.q
    assert torch.equal(weight.codes[:, :16] & 15, q[:, :16]) and torch.equal(weight.codes[:, :16] >> 4, q[:, 16:32])
    assert torch.equal(weight.codes[:, 16:] >> 4, q[:, 48:])


def test_projections_are_fused_by_outputs():
    one, two = random_weight(8, 128, 64, seed=1), random_weight(24, 128, 64, seed=2)
    fused = one.cat([two])
    assert fused.shape == (32, 128) and fused.nbytes == one.nbytes + two.nbytes
    assert torch.equal(fused.floats(), torch.cat([one.floats(), two.floats()]))
    with pytest.raises(CheckpointError, match="groups of several sizes"):
        one.cat([random_weight(8, 128, 32)])
    with pytest.raises(CheckpointError, match="several formats: awq, float"):
        one.cat([FloatWeight(one.floats())])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_keeps_the_weight_in_4_bits(dtype: torch.dtype):
    weight, bias = random_weight(16, 64, 32, dtype=dtype), torch.randn(16).to(dtype)
    x = torch.randn(5, 64).to(dtype)
    small, plain = Dequantised(weight, bias), Reference(weight, bias)
    # 4.75 bits per weight in groups of 32: 4 of its code, 16 of a scale and 8 of a zero for 32
    assert small.nbytes == 16 * 64 * (4 + 24 / 32) / 8 and plain.nbytes == 16 * 64 * dtype.itemsize
    torch.testing.assert_close(small(x), plain(x), rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)
