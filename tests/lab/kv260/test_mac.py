"""The accelerator's arithmetic against its naive twin, to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.lab.kv260 import mac, macro
from tests.lab.kv260.linears import PlainLinear, naive_sums, random_linear


def sums(linear: PlainLinear, x: np.ndarray) -> np.ndarray:
    return mac.sums(mac.unpack_unit(macro.pack(linear.gemm())), x)


def same_bits(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.view(np.uint32).tolist() == expected.view(np.uint32).tolist()


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.sampled_from((32, 64)), st.integers(0, 2**32 - 1))
def test_sums_are_those_of_the_naive_twin(blocks, groups, group, seed):
    linear = random_linear(8 * blocks, groups * group, group, seed)
    x = np.random.default_rng(seed).standard_normal((2, groups * group)).astype(np.float32)
    assert same_bits(sums(linear, x), np.stack([naive_sums(linear, row) for row in x]))


def test_any_bits_of_inputs_and_scales():
    """Subnormals, infinities and NaN among the inputs and scales; NaN results have one pattern."""
    draw = np.random.default_rng(5)
    plain = random_linear(16, 64, 32, 5)
    linear = PlainLinear(plain.q, plain.z, draw.integers(0, 1 << 16, plain.s.shape).astype(np.uint16).view(np.float16))
    x = draw.integers(0, 1 << 32, (4, 64)).astype(np.uint32).view(np.float32)
    x[2:, :] = np.float32(1e-41) * draw.integers(-3, 4, (2, 64))  # subnormals and zeros of both signs
    found = sums(linear, x)
    assert same_bits(found, np.stack([naive_sums(linear, row) for row in x]))
    assert set(found.view(np.uint32)[np.isnan(found)].tolist()) == {0x7FC00000}


def test_subnormal_products_are_kept():
    ones = PlainLinear(np.full((8, 32), 9), np.full((8, 1), 8), np.full((8, 1), 2.0**-24, np.float16))
    x = np.full((1, 32), 2.0**-120, np.float32)
    assert sums(ones, x).tolist() == [[2.0**-139] * 8]  # flushed to zero it would be 0


def test_the_order_of_the_sums_counts():
    """Pairs, quarters, then the partial sum. Summed from left to right the small terms would vanish."""
    linear = PlainLinear(np.full((8, 32), 9), np.full((8, 1), 8), np.ones((8, 1), np.float16))
    x = np.zeros((1, 32), np.float32)
    x[0, :4] = [2.0**24, 0, 1, 1]
    assert sums(linear, x)[0, 0] == 2.0**24 + 2
    x[0] = 0
    x[0, 0], x[0, 8], x[0, 16] = 2.0**24, 1, 1  # three steps: each 1 meets the large partial sum alone
    assert sums(linear, x)[0, 0] == 2.0**24


def test_the_scale_multiplies_the_input_first():
    """(q - z) * (x * s) and ((q - z) * s) * x round differently here."""
    linear = PlainLinear(np.full((8, 32), 11), np.full((8, 1), 8), np.full((8, 1), 0.1, np.float16))
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 0.7
    scale, value, three = np.float32(linear.s[0, 0]), np.float32(0.7), np.float32(3)
    assert sums(linear, x)[0, 0] == three * (value * scale)
    assert three * (value * scale) != (three * scale) * value


def test_the_sum_of_negative_zeros_is_positive():
    linear = PlainLinear(np.full((8, 32), 8), np.full((8, 1), 8), np.ones((8, 1), np.float16))
    assert not np.signbit(sums(linear, np.full((1, 32), -1.0, np.float32))).any()


@pytest.mark.parametrize("channel", range(4))
def test_a_channel_gives_the_sums_of_its_blocks(channel):
    linear = random_linear(72, 64, 64, 3)
    x = np.random.default_rng(3).standard_normal((1, 64)).astype(np.float32)
    macros = macro.split(macro.pack(linear.gemm()))[channel]
    expected = sums(linear, x).reshape(1, 9, 8)[:, channel::4].reshape(1, -1)
    assert same_bits(mac.sums(mac.unpack_unit(macros), x), expected)
