"""Pixel values of the three resize strategies and the centre crop, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from edgeflow.policies.openvla.config import ImageConfig, TowerImage
from edgeflow.policies.openvla.preprocess import Preprocessor, center_crop

DINO = TowerImage((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bicubic")
SIGLIP = TowerImage((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic")


def preprocessor(strategy: str, side: int = 28, towers=(DINO, SIGLIP), *, crop: bool = False) -> Preprocessor:
    return Preprocessor(ImageConfig(side, strategy, tuple(towers), crop))


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def bytes_of(pixels: np.ndarray) -> np.ndarray:
    """The image after SigLIP's pixel values [3, side, side], as uint8 [side, side, 3]."""
    return np.rint((pixels * 0.5 + 0.5) * 255).astype(np.uint8).transpose(1, 2, 0)


def test_both_towers_see_the_same_image_each_in_its_own_normalisation():
    image = picture(28, 28)
    pixels = preprocessor("resize-naive")(image)
    assert pixels.shape == (6, 28, 28) and pixels.dtype == np.float32 and pixels.flags.c_contiguous
    unit = image.transpose(2, 0, 1) / 255
    mean, std = np.array(DINO.mean)[:, None, None], np.array(DINO.std)[:, None, None]
    np.testing.assert_allclose(pixels[:3], (unit - mean) / std, atol=1e-6)
    np.testing.assert_allclose(pixels[3:], (unit - 0.5) / 0.5, atol=1e-6)


@pytest.mark.parametrize("size", [(480, 640), (7, 64), (1, 1), (28, 27)])
def test_naive_resize_ignores_the_aspect(size: tuple[int, int]):
    image = picture(*size)
    expected = np.asarray(Image.fromarray(image).resize((28, 28), Image.Resampling.BICUBIC))
    assert np.array_equal(bytes_of(preprocessor("resize-naive", towers=[SIGLIP])(image)), expected)


@pytest.mark.parametrize(("height", "width"), [(20, 60), (60, 20), (30, 32)])
def test_letterbox_pads_to_a_square_with_the_mean(height: int, width: int):
    image = picture(height, width)
    side = max(height, width)
    square = np.full((side, side, 3), 127, np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = image
    expected = np.asarray(Image.fromarray(square).resize((28, 28), Image.Resampling.BICUBIC))
    assert np.array_equal(bytes_of(preprocessor("letterbox", towers=[SIGLIP])(image)), expected)


def test_letterbox_of_an_odd_difference_is_cut_not_squeezed():
    """Padding 0 rows of 1 leaves 33 x 32: the short side becomes 28, the long one 28, nothing is left to cut."""
    image = picture(33, 32)
    expected = np.asarray(Image.fromarray(image).resize((28, 28), Image.Resampling.BICUBIC))
    assert np.array_equal(bytes_of(preprocessor("letterbox", towers=[SIGLIP])(image)), expected)
    image = picture(11, 10)
    expected = np.asarray(Image.fromarray(image).resize((28, 30), Image.Resampling.BICUBIC))[1:29]
    assert np.array_equal(bytes_of(preprocessor("letterbox", towers=[SIGLIP])(image)), expected)


@pytest.mark.parametrize("first", [DINO, SIGLIP])
def test_letterbox_fills_all_towers_with_the_last_ones_mean(first: TowerImage):
    last = TowerImage((0.1, 0.2, 0.9), (0.5, 0.5, 0.5), "bicubic")
    pixels = preprocessor("letterbox", towers=[first, last])(picture(4, 28))
    corner = pixels[:3, 0, 0] * np.array(first.std) + np.array(first.mean)
    np.testing.assert_allclose(corner * 255, [25, 51, 229], atol=1e-3)


@pytest.mark.parametrize(
    ("size", "scaled", "cut"),
    [
        ((40, 70), (28, 49), (0, 10)),
        ((70, 40), (49, 28), (10, 0)),
        ((28, 29), (28, 29), (0, 0)),
        ((28, 31), (28, 31), (0, 2)),
    ],
)
def test_resize_crop_keeps_the_aspect(size, scaled, cut):
    image = picture(*size)
    resized = np.asarray(Image.fromarray(image).resize(scaled[::-1], Image.Resampling.BICUBIC))
    expected = resized[cut[0] : cut[0] + 28, cut[1] : cut[1] + 28]
    assert np.array_equal(bytes_of(preprocessor("resize-crop", towers=[SIGLIP])(image)), expected)


def test_each_tower_is_resized_its_own_way():
    other = TowerImage(SIGLIP.mean, SIGLIP.std, "bilinear")
    pixels = preprocessor("resize-naive", towers=[SIGLIP, other])(picture(90, 50))
    plain = preprocessor("resize-naive", towers=[other])(picture(90, 50))
    assert np.array_equal(pixels[3:], plain) and not np.array_equal(pixels[:3], plain)


@settings(max_examples=30, deadline=None)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    strategy=st.sampled_from(["resize-naive", "letterbox", "resize-crop"]),
)
def test_any_shape_gives_finite_pixels_of_the_size(height: int, width: int, strategy: str):
    for crop in (False, True):
        pixels = preprocessor(strategy, crop=crop)(picture(height, width))
        assert pixels.shape == (6, 28, 28) and np.isfinite(pixels).all()


def test_center_crop_samples_corner_on_corner():
    """Point by point: rows and columns from 2.57 % to 97.43 % of the way between the outer pixels' centres."""
    image = picture(13, 17)
    crop = center_crop(image, 9)
    low = (1 - 0.9**0.5) / 2
    for i in range(9):
        for j in range(9):
            y, x = ((low + (1 - 2 * low) * step / 8) * (size - 1) for step, size in ((i, 13), (j, 17)))
            top, left = int(y), int(x)
            dy, dx = y - top, x - left
            corners = image[top : top + 2, left : left + 2].astype(float)
            value = (1 - dy) * ((1 - dx) * corners[0, 0] + dx * corners[0, 1])
            value += dy * ((1 - dx) * corners[1, 0] + dx * corners[1, 1])
            assert np.abs(crop[i, j] - value * 255.5 / 255).max() < 1.001


def test_center_crop_keeps_a_flat_image_and_cuts_the_border():
    flat = np.full((40, 40, 3), 200, np.uint8)
    assert np.array_equal(center_crop(flat, 30), np.full((30, 30, 3), 200, np.uint8))
    framed = flat.copy()
    framed[[0, -1]], framed[:, [0, -1]] = 0, 0
    assert center_crop(framed, 40).min() == 200
