"""Images that the SDK shrinks to what a policy takes look to it like those that it shrinks itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgeflow.config.matching import shrunk
from edgeflow.contract import CameraNeed
from edgeflow.policies.flow.observing import Margin, fitted
from edgeflow.policies.openvla.config import RESIZE_STRATEGIES, ImageConfig, TowerImage
from edgeflow.policies.openvla.preprocess import Preprocessor
from edgeflow_client.pictures import Picture
from edgeflow_client.types import CameraSpec, ImageFormat

SIDE = 48
SIZES = [(192, 144), (144, 192), (100, 75)]


def picture(width: int, height: int) -> np.ndarray:
    """Smooth shapes, as of a camera."""
    rows, columns = np.mgrid[0:height, 0:width] / height
    waves = [np.sin(9 * rows + shift) * np.cos(7 * columns) for shift in (0, 1, 2)]
    return (127 + 120 * np.stack(waves, axis=-1)).astype(np.uint8)


def as_sent(image: np.ndarray) -> np.ndarray:
    height, width, _ = image.shape
    camera = CameraSpec("top", width, height, ImageFormat.RGB8, send=ImageFormat.RGB8, resize=True)
    wanted = shrunk(camera, CameraNeed(name="top", side=SIDE))
    size = (wanted.width, wanted.height)
    assert min(size) == SIDE
    return np.frombuffer(Picture(image.tobytes(), camera, size).encoded(), np.uint8).reshape(*size[::-1], 3)


def levels(difference: np.ndarray) -> float:
    """Mean difference of pixels, of 255 levels."""
    return float(np.abs(difference).mean() * 255)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("margin", Margin)
def test_a_flow_policy_that_pads_sees_the_same(size, margin):
    def seen(image: np.ndarray) -> np.ndarray:
        planes = torch.from_numpy(image.copy()).permute(2, 0, 1).float() / 255
        return (fitted(planes, (SIDE, SIDE), margin).numpy() + 1) / 2

    image = picture(*size)
    assert levels(seen(image) - seen(as_sent(image))) < 3
    assert levels(seen(image) - seen(as_sent(image[:, ::-1]))) > 10


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("crop", [False, True], ids=["whole", "centre"])
@pytest.mark.parametrize("strategy", RESIZE_STRATEGIES)
def test_openvla_sees_the_same(strategy, crop, size):
    tower = TowerImage((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "bicubic")
    seen = Preprocessor(ImageConfig(SIDE, strategy, (tower,), crop))
    image = picture(*size)
    assert levels(seen(image) - seen(as_sent(image))) < 3
    assert levels(seen(image) - seen(as_sent(image[:, ::-1]))) > 10
