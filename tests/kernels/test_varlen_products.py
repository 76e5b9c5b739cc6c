"""Attention in products over sequences long enough for it, against the formula, in bfloat16."""

from __future__ import annotations

import pytest
import torch

from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, built_in_table
from edgeflow.kernels.varlen_attention import LONG, Sequences, products, reference, sdpa
from edgeflow.lab.trials.cases import Heads, varlen_attention
from edgeflow.lab.trials.compare import tolerance
from tests.kernels.deviation import deviation

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("lengths", "heads"),
    [([LONG, 3, LONG + 8, LONG + 8], Heads(2, 2, 64)), ([LONG + 200], Heads(3, 3, 72)), ([1100], Heads(2, 2, 32))],
    ids=["several sequences", "heads of odd width", "one head at a time"],
)
def test_products_agree_with_the_formula(lengths, heads):
    case = varlen_attention(lengths, heads)
    assert deviation(case, products, reference, CPU, torch.bfloat16) < tolerance(case, torch.bfloat16)


@pytest.mark.parametrize("size", [0.1, 4.0], ids=["flat", "peaked"])
def test_scores_of_any_size_are_rounded_no_worse_than_written_out(size):
    """Scores far from the guess of the largest, on either side of it."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(LONG, 2, 64, generator=generator) for _ in range(3))
    q, k, v = ((each * scale).bfloat16() for each, scale in ((q, size), (k, size), (v, 1.0)))
    sequences = Sequences.of([LONG], CPU)
    right = reference(q.float(), k.float(), v.float(), sequences)

    def off(out: torch.Tensor) -> float:
        return float((out.float() - right).norm() / right.norm())

    assert off(products(q, k, v, sequences)) <= 1.1 * off(reference(q, k, v, sequences))
    assert off(sdpa(q, k, v, sequences)) < 0.01


@pytest.mark.parametrize(("dtype", "served"), [(torch.bfloat16, "products"), (torch.float32, "sdpa")])
def test_products_serve_where_they_were_measured(dtype, served):
    key = OperatorKey(op_name="varlen_attention", model_name="vit", layer_role="full", stage="prefill")
    assert built_in_table().choose(key, Hardware("cpu"), dtype).implementation.impl_id == served
    assert built_in_table().choose(key, Hardware("cuda", 90), dtype).implementation.impl_id == "sdpa"
