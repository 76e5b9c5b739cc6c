"""The search against AutoAWQ and llm-awq on the same calibration tokens (bundle awq-search).

All blocks of one model and one of the other here, to keep the suite short; benchmarks/awq_search compares every block
of both models in both forms.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.awq_search.recorded import Recorded, comparison
from edgeflow.quantize.search.scales import ScaleForm
from tests.oracles import ORACLES


@pytest.mark.oracle("awq-search", "stories260K-hf")
@pytest.mark.parametrize(
    ("model", "form", "blocks"),
    [("stories", ScaleForm.DUO, range(5)), ("chat", ScaleForm.X, (3,))],
    ids=["stories, duo", "chat, x"],
)
def test_ratios_losses_and_limits_are_the_recorded_ones(model: str, form: ScaleForm, blocks: range | tuple[int]):
    """Losses are within 2e-7. A different order of summing the statistics moves single roundings, and losses by 1e-3; a
    wrong scale form or a wrong measured output moves them by 10 % and more."""
    torch.set_num_threads(1)
    recorded = Recorded(ORACLES, model, form)
    found = [comparison(recorded, index) for index in blocks]
    assert all(each.ratios_equal for each in found)
    assert max(each.largest_loss_error for each in found) <= 1e-5
    equal, limits = sum(each.limits_equal for each in found), sum(each.limits for each in found)
    assert equal >= 0.999 * limits
