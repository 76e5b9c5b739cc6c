"""The group size and the padded MLP width."""

from __future__ import annotations

import pytest

from edgeflow.lab.quantize.files.source import grouping
from edgeflow.models.llama import LlamaConfig
from edgeflow_client.errors import CheckpointError
from tests.lab.quantize.cases import SIZE


@pytest.mark.parametrize(
    ("widths", "wanted", "expected"),
    [
        ((64, 128), None, (64, 128)),
        ((64, 96), None, (32, 96)),  # a group that divides all is better than padding
        ((64, 172), None, (64, 192)),
        ((64, 96), 64, (64, 128)),
        ((96, 100), None, (32, 128)),
        ((128, 256), 128, (128, 256)),
    ],
)
def test_the_group_and_the_padding(widths: tuple[int, int], wanted: int | None, expected: tuple[int, int]):
    sizes = {**SIZE, "hidden_size": widths[0], "intermediate_size": widths[1]}
    found = grouping(LlamaConfig(**sizes, num_key_value_heads=4), wanted)
    assert (found.group, found.inner) == expected


def test_a_width_that_no_group_divides_is_rejected():
    with pytest.raises(CheckpointError, match="48 are not multiples of a group of 64 or 32"):
        grouping(LlamaConfig(**{**SIZE, "hidden_size": 48}, intermediate_size=96, num_key_value_heads=4))


def test_outputs_that_do_not_fill_words_are_rejected():
    config = LlamaConfig(**{**SIZE, "num_attention_heads": 16}, intermediate_size=96, num_key_value_heads=1)
    with pytest.raises(CheckpointError, match="k_proj has 4 outputs: the GEMM layout needs a multiple of 8"):
        grouping(config)
