"""The clip search against partial dot products written out."""

from __future__ import annotations

import torch

from edgeflow.lab.quantize.search.block import LINEARS
from edgeflow.lab.quantize.search.clipping import clamped, clip_limits, clipped_linears, sampled
from tests.lab.quantize.cases import naive_limits

GROUP = 32


def test_limits_are_those_of_the_written_out_search():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(40, 96, generator=generator) ** 3  # 40 rows: not a multiple of 64
    rows = torch.randn(100, 96, generator=generator)
    found, wanted = clip_limits(weight, rows, GROUP), naive_limits(weight, rows, GROUP)
    assert torch.isclose(found, wanted, rtol=1e-6).float().mean() >= 0.99  # a tie may fall the other way
    assert (found < wanted.new_tensor(1.0) * weight.view(40, 3, GROUP).abs().amax(2)).any()


def test_rows_of_zeros_keep_the_limit_zero():
    assert clip_limits(torch.zeros(3, GROUP), torch.ones(4, GROUP), GROUP).tolist() == [[0]] * 3


def test_clamped_within_the_limit_of_each_group():
    weight = torch.tensor([[3.0, -3.0, 1.0, -5.0]])
    assert clamped(weight, torch.tensor([[2.0, 4.0]])).tolist() == [[2, -2, 1, -4]]


def test_every_nth_row_is_sampled():
    """AutoAWQ takes every n-th token, n = max(1, T // 512): 512 to 1,023 of them."""
    counts = {tokens: len(sampled(torch.zeros(tokens, 1))) for tokens in (5, 512, 1023, 1024, 8192)}
    assert counts == {5: 5, 512: 512, 1023: 1023, 1024: 512, 8192: 512}


def test_queries_and_keys_are_not_clipped():
    assert [name.split(".")[1] for name in clipped_linears(LINEARS)] == [
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ]
