"""The search against AutoAWQ and llm-awq on the same calibration tokens (bundle awq-search).

One block of each model by day, and all of the first by night, to keep the suite short; benchmarks/awq_search compares
every block of both models in both forms.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.awq_search.recorded import NEAR, Recorded, comparison
from edgeflow.lab.quantize.search.scales import ScaleForm
from tests.cases import by_night
from tests.oracles import ORACLES


@pytest.mark.oracle("awq-search", "stories260K-hf")
@pytest.mark.parametrize(
    ("model", "form", "blocks"),
    [
        by_night("stories", ScaleForm.DUO, range(5), id="stories, duo"),
        pytest.param("stories", ScaleForm.DUO, (2,), id="a block of stories, duo"),
        pytest.param("chat", ScaleForm.X, (3,), id="chat, x"),
    ],
)
def test_each_step_is_the_recorded_one(model: str, form: ScaleForm, blocks: range | tuple[int]):
    """A wrong scale form or a wrong measured output moves losses by 10 % and more, a rounding that differs by 1e-4."""
    torch.set_num_threads(1)
    recorded = Recorded(ORACLES, model, form)
    found = [comparison(recorded, index) for index in blocks]
    assert all(each.ratios_equal for each in found)
    assert max(each.statistics for each in found) <= 1e-6
    assert max(each.losses for each in found) <= NEAR
    assert max(each.scales for each in found) <= 1e-6
    assert sum(each.limits_equal for each in found) >= 0.999 * sum(each.limits for each in found)
