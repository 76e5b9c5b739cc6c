"""From a camera frame to pixel values, exactly as the published processor does (reference: vla_numerics 3.1).

Torch-free: Pillow and numpy only, so that any process may do it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgeflow.models.openvla.config import ImageConfig

CROP_AREA = 0.9
_RESAMPLING = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
}


class Preprocessor:
    """Callable: uint8 [H, W, 3] RGB → float32 [3 * towers, side, side]."""

    def __init__(self, config: ImageConfig) -> None:
        self._config = config
        self._means, self._stds = (
            [np.asarray(values, np.float32)[:, None, None] for values in each]
            for each in ([tower.mean for tower in config.towers], [tower.std for tower in config.towers])
        )
        # The published processor keeps one fill, the last tower's mean, for all towers.
        self._fill = tuple(int(mean * 255) for mean in config.towers[-1].mean)

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        config = self._config
        if config.center_crop:
            image = center_crop(image, config.side)
        picture = Image.fromarray(image)
        if config.strategy == "letterbox":
            picture = _letterbox(picture, self._fill)
        kinds = [tower.interpolation for tower in config.towers]
        scaled = {kind: _unit_range(self._resize(picture, _RESAMPLING[kind])) for kind in dict.fromkeys(kinds)}
        parts = [(scaled[k] - mean) / std for k, mean, std in zip(kinds, self._means, self._stds, strict=True)]
        return np.concatenate(parts)

    def _resize(self, picture: Image.Image, resampling: Image.Resampling) -> Image.Image:
        side = self._config.side
        if self._config.strategy == "resize-naive":
            return picture if picture.size == (side, side) else picture.resize((side, side), resampling)
        return _short_side_crop(picture, side, resampling)


def center_crop(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """The middle CROP_AREA of a frame, sampled at side x side points, corner on corner, bilinear without smoothing.

    What fine-tunes with image augmentation are evaluated with (TensorFlow's `crop_and_resize`, and its conversion
    to uint8, which scales by 255.5 and cuts).
    """
    extent = np.float32(CROP_AREA**0.5)
    steps = (1 - extent) / 2 + extent * np.linspace(0, 1, side, dtype=np.float32)
    unit = image.astype(np.float32) * np.float32(1 / 255)
    rows = _sample(unit, steps * (image.shape[0] - 1))
    crop = _sample(rows.swapaxes(0, 1), steps * (image.shape[1] - 1)).swapaxes(0, 1)
    return (np.clip(crop, 0, 1) * np.float32(255.5)).astype(np.uint8)


def _sample(values: NDArray[np.float32], places: NDArray[np.float32]) -> NDArray[np.float32]:
    """Linear interpolation along the first axis."""
    low = np.floor(places).astype(np.int64)
    high = np.minimum(low + 1, len(values) - 1)
    share = (places - low).astype(np.float32)[:, None, None]
    sampled: NDArray[np.float32] = values[low] + (values[high] - values[low]) * share
    return sampled


def _unit_range(picture: Image.Image) -> NDArray[np.float32]:
    """RGB → [3, side, side] in 0 .. 1"""
    return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1), np.float32) / np.float32(255)


def _letterbox(picture: Image.Image, fill: tuple[int, ...]) -> Image.Image:
    """Pad the short side equally at both ends; an odd difference leaves it one pixel short of square."""
    width, height = picture.size
    left, top = (max(width, height) - width) // 2, (max(width, height) - height) // 2
    padded = Image.new("RGB", (width + 2 * left, height + 2 * top), fill)
    padded.paste(picture, (left, top))
    return padded


def _short_side_crop(picture: Image.Image, side: int, resampling: Image.Resampling) -> Image.Image:
    """Resize the short side, keep the aspect, cut the middle."""
    width, height = picture.size
    if width <= height:
        size = (side, int(side * height / width))
    else:
        size = (int(side * width / height), side)
    if picture.size != size:
        picture = picture.resize(size, resampling)
    left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
    return picture.crop((left, top, left + side, top + side))
