"""Images fitted into a size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.policies.flow.observing import Margin, fitted

SIDES = st.integers(1, 40)


@given(height=SIDES, width=SIDES, size=st.tuples(SIDES, SIDES), margin=st.sampled_from(Margin))
def test_a_bright_image_fills_what_its_aspect_allows(height: int, width: int, size: tuple[int, int], margin: Margin):
    found = fitted(torch.ones(3, height, width), size, margin)
    assert found.shape == (3, *size)
    bright = (found[0] - 1).abs() < 1e-5
    assert torch.equal(found[0][~bright], torch.full_like(found[0][~bright], -1.0))
    rows, columns = (bright.any(axis).nonzero()[:, 0] for axis in (1, 0))
    ratio = max(height / size[0], width / size[1])
    assert (len(rows), len(columns)) == (max(int(height / ratio), 1), max(int(width / ratio), 1))
    for places, side in ((rows, size[0]), (columns, size[1])):
        free = side - len(places)
        assert int(places[0]) == (free if margin is Margin.LEFT_TOP else free // 2)


@pytest.mark.parametrize("margin", Margin)
def test_an_image_of_the_right_size_stays(margin: Margin):
    image = torch.rand(3, 8, 8)
    assert torch.equal(fitted(image, (8, 8), margin), image * 2 - 1)


def test_large_images_are_sampled_without_averaging():
    """Halved without antialiasing: the mean of the four pixels around each new one."""
    image = torch.arange(48.0).view(3, 4, 4) / 48
    wanted = image.unfold(1, 2, 2).unfold(2, 2, 2).mean((3, 4)) * 2 - 1
    torch.testing.assert_close(fitted(image, (2, 2), Margin.AROUND), wanted)
