"""Distributions against numpy, on random data."""

import math

import numpy as np
import pytest

from edgeflow_client.loadtest.measure import distribution


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_those_of_the_data(seed):
    data = np.random.default_rng(seed).gamma(2.0, 30.0, 3000)
    of = distribution(data)
    assert (of.count, of.max) == (3000, data.max())
    np.testing.assert_allclose([of.mean, of.deviation], [data.mean(), data.std()])
    np.testing.assert_allclose([of.p50, of.p90, of.p99, of.p999], np.quantile(data, [0.5, 0.9, 0.99, 0.999]))


def test_no_data_is_not_zero():
    of = distribution([])
    assert of.count == 0 and math.isnan(of.p50) and math.isnan(of.max)
