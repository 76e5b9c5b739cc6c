"""Bounds of sampling parameters."""

from __future__ import annotations

import math

import pytest

from edgeflow.engine.sampling.params import SamplingParams
from edgeflow_client.errors import InvalidArgument


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_a_penalty_is_one_that_changes_logits(name: str):
    assert SamplingParams(max_tokens=1, **{name: 0.5}).penalised
    assert not SamplingParams(max_tokens=1, temperature=1.0, top_p=0.5).penalised


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -0.1), ("temperature", 2.1), ("temperature", math.nan), ("temperature", "1"), ("top_p", 0),
     ("top_p", 1.1), ("top_k", -1), ("top_k", 1.5), ("min_p", 2), ("repetition_penalty", 0), ("presence_penalty", 3),
     ("frequency_penalty", -3), ("max_tokens", 0), ("max_tokens", True), ("logprobs", 6), ("seed", 1.5)],
)  # fmt: skip
def test_parameters_out_of_bounds_are_named(name: str, value: object):
    with pytest.raises(InvalidArgument) as caught:
        SamplingParams(**{"max_tokens": 1, name: value})
    assert caught.value.field == name
