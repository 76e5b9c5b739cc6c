"""The bins of π0.5's states."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.policies.pi.network import bins, prompt_text

EDGE = 1 / 128


def test_bins_of_published_values():
    """Edges belong to the bin above them; only what is below the range has a bin of its own."""
    values = {-1.0: 0, -1.0 + EDGE: 1, 0.0: 128, 1.0 - EDGE: 255, 1.0: 255, 50.0: 255, -1.0001: -1, -50.0: -1}
    assert bins(np.array(list(values), np.float32)) == tuple(values.values())


@given(st.floats(-1, 1, width=32, exclude_max=True))
def test_a_number_of_the_range_lies_in_its_bin(value: float):
    (found,) = bins(np.array([value], np.float32))
    assert -1 + found * EDGE <= value < -1 + (found + 1) * EDGE


def test_the_text():
    assert prompt_text(" stack_the\nblock ", (0, -1)) == "Task: stack the block, State: 0 -1;\nAction: "
