"""Pixel values made on the device are the host's, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgeflow.policies.openvla.config import ImageConfig, TowerImage
from edgeflow.policies.openvla.preprocess import DevicePreprocessor, Preprocessor
from tests.policies.openvla.test_preprocess import DINO, SIGLIP, picture

CPU = torch.device("cpu")


def assert_equal(config: ImageConfig, image: np.ndarray) -> None:
    torch.set_num_threads(1)
    expected, found = Preprocessor(config)(image), DevicePreprocessor(config, CPU)(image)
    assert found.dtype == torch.float32 and found.is_contiguous()
    assert np.array_equal(found.numpy(), expected)


@settings(max_examples=150, deadline=None)
@given(
    size=st.tuples(st.integers(1, 130), st.integers(1, 130)),
    strategy=st.sampled_from(["resize-naive", "letterbox", "resize-crop"]),
    kinds=st.tuples(*[st.sampled_from(["bicubic", "bilinear", "lanczos"])] * 2),
    crop=st.booleans(),
    side=st.integers(2, 40),
    contrast=st.booleans(),
    seed=st.integers(0, 99),
)
@example((28, 28), "resize-naive", ("bicubic", "lanczos"), False, 28, False, 0)
@example((28, 90), "resize-naive", ("bicubic", "bilinear"), False, 28, True, 0)
def test_any_frame_is_the_hosts_to_the_bit(size, strategy, kinds, crop, side, contrast, seed):
    image = picture(*size, seed=seed)
    if contrast:  # overshoots that are clipped
        image = (image > 127).astype(np.uint8) * 255
    towers = [TowerImage(tower.mean, tower.std, kind) for tower, kind in zip((DINO, SIGLIP), kinds, strict=True)]
    assert_equal(ImageConfig(side, strategy, tuple(towers), crop), image)


def test_sums_are_exact_up_to_the_longest_frame():
    """64 times smaller, with the widest filter: as many taps as there can be."""
    config = ImageConfig(28, "resize-naive", (TowerImage(SIGLIP.mean, SIGLIP.std, "lanczos"),))
    assert DevicePreprocessor(config, CPU).longest == 64 * 28
    assert_equal(config, np.full((30, 64 * 28, 3), 255, np.uint8))
    assert_equal(config, picture(64 * 28, 30))


@pytest.mark.parametrize("size", [(480, 640), (720, 1280), (1080, 1920), (224, 224)])
@pytest.mark.parametrize("crop", [False, True])
def test_frames_of_cameras(size: tuple[int, int], crop: bool):
    assert_equal(ImageConfig(224, "resize-naive", (DINO, SIGLIP), crop), picture(*size))
