"""Positions of images smaller than those of the training, and patches joined by a connector."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.models.checkpoint import Weights
from edgeflow.models.siglip import SigLIPTower, TowerSizes, grid_positions, shuffled
from edgeflow_client.errors import CheckpointError

SIZES = TowerSizes(width=8, inner=12, layers=0, heads=2, patch=4, grid=5)


@given(grid=st.integers(1, 40), data=st.data())
def test_patches_have_the_positions_at_their_relative_places(grid: int, data: st.DataObject):
    count = data.draw(st.integers(1, grid))
    rows = [place * grid // count for place in range(count)]
    assert grid_positions(count, grid).tolist() == [row * grid + column for row in rows for column in rows]


def test_a_row_is_a_square_of_patches():
    image = torch.arange(16).view(1, 16, 1)
    assert shuffled(image, 2).tolist() == [[[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]]
    assert torch.equal(shuffled(image, 1), image)


@pytest.mark.parametrize("side", [6, 24])
def test_images_that_do_not_fit_the_tower(side: int):
    weights = Weights.of({}, torch.float32, torch.device("cpu"))
    with pytest.raises(CheckpointError, match=f"images of {side} pixels; served: multiples of the patch, 4, to 20"):
        SigLIPTower(SIZES, weights, side=side)
