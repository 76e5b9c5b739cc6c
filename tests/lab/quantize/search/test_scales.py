"""Scale statistics and candidates, number by number."""

from __future__ import annotations

import pytest
import torch

from edgeflow.lab.quantize.search.scales import (
    RATIOS,
    ChannelStatistics,
    ScaleForm,
    candidates,
    input_means,
    scales_of,
    weight_means,
)

STATISTICS = ChannelStatistics(torch.tensor([0.5, 4.0, 1.0]), torch.tensor([0.2, 0.4, 0.9]))


def test_twenty_ratios_without_one():
    assert len(RATIOS) == 20 and RATIOS[0] == 0 and RATIOS[-1] == 0.95


def test_means_of_inputs_and_weights():
    rows = torch.tensor([[1.0, -2.0], [-3.0, 0.0]])
    assert input_means(rows).tolist() == [2.0, 1.0]
    weights = [torch.tensor([[1.0, -4.0, 2.0, 2.0]]), torch.tensor([[0.0, 0.0, 1.0, -0.5]])]
    assert weight_means(weights, 2).tolist() == pytest.approx([0.125, 0.5, 1.0, 0.75], rel=1e-5)


@pytest.mark.parametrize(
    ("form", "raised"),
    [
        (ScaleForm.X, [0.5**0.25, 4**0.25, 1.0]),
        (ScaleForm.DUO, [0.5**0.25 / (0.2**0.75 + 1e-4), 4**0.25 / (0.4**0.75 + 1e-4), 1 / (0.9**0.75 + 1e-4)]),
    ],
)
def test_the_formula(form: ScaleForm, raised: list[float]):
    middle = (max(raised) * min(raised)) ** 0.5
    found = scales_of(form, 0.25, STATISTICS)
    assert found.tolist() == pytest.approx([each / middle for each in raised], rel=1e-6)


def test_the_identity_is_a_candidate_once():
    """The first ratio of the form x is s = 1 already; no ratio of duo is."""
    duo = list(candidates(ScaleForm.DUO, STATISTICS, identity=True))
    assert duo[-1].ratio is None and duo[-1].scales.tolist() == [1, 1, 1] and len(duo) == 21
    assert len(list(candidates(ScaleForm.DUO, STATISTICS, identity=False))) == 20
    plain = list(candidates(ScaleForm.X, STATISTICS, identity=True))
    assert len(plain) == 20 and plain[0].scales.tolist() == [1, 1, 1]


@pytest.mark.parametrize("form", ScaleForm)
def test_channels_without_activations_do_not_stretch_the_others(form: ScaleForm):
    """With AutoAWQ's normalisation the largest scale of a live channel here is above 10."""
    dead = ChannelStatistics(
        torch.cat([STATISTICS.inputs, torch.zeros(5)]), torch.cat([STATISTICS.weights, torch.zeros(5)])
    )
    for ratio in RATIOS:
        found, alone = scales_of(form, ratio, dead), scales_of(form, ratio, STATISTICS)
        assert found[3:].tolist() == [1] * 5
        share = found[:3] / alone
        assert torch.allclose(share, share[:1], rtol=1e-5) and 0.7 < share[0] < 1.42


def test_no_activations_at_all():
    found = scales_of(ScaleForm.DUO, 0.5, ChannelStatistics(torch.zeros(4), torch.zeros(4)))
    assert found.tolist() == [1] * 4
