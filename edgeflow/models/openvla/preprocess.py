"""From a camera frame to pixel values, exactly as the published processor does (vla_numerics 3.1).

Torch-free: Pillow and numpy only, so that any process may do it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgeflow.models.openvla.config import ImageConfig

CROP_AREA = 0.9


class Preprocessor:
    """Callable: uint8 [H, W, 3] RGB → float32 [3 * towers, side, side]."""

    def __init__(self, config: ImageConfig) -> None:
        self._config = config
        shape = (len(config.means), 3, 1, 1)
        self._means = np.asarray(config.means, np.float32).reshape(shape)
        self._stds = np.asarray(config.stds, np.float32).reshape(shape)
        # The published processor fills with the last tower's mean, for all towers.
        self._fill = tuple(int(mean * 255) for mean in config.means[-1])

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        picture = Image.fromarray(image)
        if self._config.center_crop:
            picture = _center_crop(picture)
        pixels = np.asarray(self._resize(picture), np.float32).transpose(2, 0, 1) / np.float32(255)
        normed: NDArray[np.float32] = (pixels - self._means) / self._stds
        return normed.reshape(-1, *normed.shape[2:])

    def _resize(self, picture: Image.Image) -> Image.Image:
        side = self._config.side
        match self._config.strategy:
            case "letterbox":
                picture = _letterbox(picture, self._fill)
            case "resize-crop":
                picture = _short_side_crop(picture, side)
        if picture.size != (side, side):
            picture = picture.resize((side, side), Image.Resampling.BICUBIC)
        return picture


def _letterbox(picture: Image.Image, fill: tuple[int, ...]) -> Image.Image:
    """Pad the short side equally at both ends; an odd difference leaves it one pixel short of square."""
    width, height = picture.size
    left, top = (max(width, height) - width) // 2, (max(width, height) - height) // 2
    padded = Image.new("RGB", (width + 2 * left, height + 2 * top), fill)
    padded.paste(picture, (left, top))
    return padded


def _short_side_crop(picture: Image.Image, side: int) -> Image.Image:
    """Resize the short side, keep the aspect, cut the middle."""
    width, height = picture.size
    if width <= height:
        size = (side, int(side * height / width))
    else:
        size = (int(side * width / height), side)
    if picture.size != size:
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
    return picture.crop((left, top, left + side, top + side))


def _center_crop(picture: Image.Image) -> Image.Image:
    """The middle 0.9 of the area, at the original size again, bilinear (fine-tunes with image augmentation)."""
    width, height = picture.size
    scale = CROP_AREA**0.5
    left, top = width * (1 - scale) / 2, height * (1 - scale) / 2
    box = (left, top, width - left, height - top)
    return picture.resize((width, height), Image.Resampling.BILINEAR, box=box)
