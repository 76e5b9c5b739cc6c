"""Camera frames to pixel values, exactly as the published processor computes them.

Published source: OpenVLA's prismatic/extern/hf/processing_prismatic.py.

Torch-free: Pillow and numpy only, so that any process may do it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgeflow.policies.openvla.config import ImageConfig, TowerImage

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
        self._fill = letterbox_fill(config)

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        config = self._config
        if config.center_crop:
            image = center_crop(image, config.side)
        picture = Image.fromarray(image)
        if config.strategy == "letterbox":
            picture = _letterbox(picture, self._fill)
        resized = {kind: np.asarray(self._resize(picture, _RESAMPLING[kind])) for kind in kinds(config)}
        scaled = {kind: _unit_range(levels.transpose(2, 0, 1)) for kind, levels in resized.items()}
        return np.concatenate([_normalised(scaled[tower.interpolation], tower) for tower in config.towers])

    def _resize(self, picture: Image.Image, resampling: Image.Resampling) -> Image.Image:
        """Along the rows first, as Pillow did until 13, which turns the order round for some upright frames."""
        side, size = self._config.side, scaled_size(self._config, *picture.size)
        picture = picture.resize((size[0], picture.height), resampling).resize(size, resampling)
        left, top = (middle(length, side) for length in size)
        return picture.crop((left, top, left + side, top + side))


def kinds(config: ImageConfig) -> list[str]:
    """The interpolations of the towers, each once."""
    return list(dict.fromkeys(tower.interpolation for tower in config.towers))


def level_table(config: ImageConfig) -> NDArray[np.float32]:
    """[3 * towers, 256]: what each level of each channel becomes, a tower behind the other."""
    unit = _unit_range(np.tile(np.arange(256, dtype=np.uint8), (3, 1)))
    return np.concatenate([_normalised(unit, tower) for tower in config.towers])


def letterbox_fill(config: ImageConfig) -> tuple[int, ...]:
    """The published processor keeps one fill, the last tower's mean, for all towers."""
    return tuple(int(mean * 255) for mean in config.towers[-1].mean)


def letterbox_margins(width: int, height: int) -> tuple[int, int]:
    """left, top: the short side is padded equally at both ends; an odd difference leaves it a pixel short of square."""
    longest = max(width, height)
    return (longest - width) // 2, (longest - height) // 2


def scaled_size(config: ImageConfig, width: int, height: int) -> tuple[int, int]:
    """width, height of the resized image, whose middle is kept: the short side is `side`, the aspect stays."""
    side = config.side
    if config.strategy == "resize-naive":
        return side, side
    if width <= height:
        return side, int(side * height / width)
    return int(side * width / height), side


def middle(length: int, side: int) -> int:
    """The start of the middle `side` of so many pixels."""
    return round((length - side) / 2)


def center_crop(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """The middle CROP_AREA of a frame, sampled at side x side points, corner on corner, bilinear without smoothing.

    What fine-tunes with image augmentation are evaluated with (TensorFlow's `crop_and_resize`, and its conversion
    to uint8, which scales by 255.5 and cuts).
    """
    unit = image.astype(np.float32) * np.float32(1 / 255)
    rows = _sample(unit, crop_places(image.shape[0], side))
    crop = _sample(rows.swapaxes(0, 1), crop_places(image.shape[1], side)).swapaxes(0, 1)
    return (np.clip(crop, 0, 1) * np.float32(255.5)).astype(np.uint8)


def crop_places(length: int, side: int) -> NDArray[np.float32]:
    """[side]: where along an axis of so many pixels the crop is sampled."""
    extent = np.float32(CROP_AREA**0.5)
    steps = (1 - extent) / 2 + extent * np.linspace(0, 1, side, dtype=np.float32)
    places: NDArray[np.float32] = steps * (length - 1)
    return places


def _sample(values: NDArray[np.float32], places: NDArray[np.float32]) -> NDArray[np.float32]:
    """Linear interpolation along the first axis."""
    low = np.floor(places).astype(np.int64)
    high = np.minimum(low + 1, len(values) - 1)
    share = (places - low).astype(np.float32)[:, None, None]
    sampled: NDArray[np.float32] = values[low] + (values[high] - values[low]) * share
    return sampled


def _unit_range(levels: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.ascontiguousarray(levels, np.float32) / np.float32(255)


def _normalised(unit: NDArray[np.float32], tower: TowerImage) -> NDArray[np.float32]:
    """[3, ...] in 0 .. 1 → what the tower takes."""
    mean, std = (np.asarray(each, np.float32).reshape(3, *[1] * (unit.ndim - 1)) for each in (tower.mean, tower.std))
    values: NDArray[np.float32] = (unit - mean) / std
    return values


def _letterbox(picture: Image.Image, fill: tuple[int, ...]) -> Image.Image:
    width, height = picture.size
    left, top = letterbox_margins(width, height)
    padded = Image.new("RGB", (width + 2 * left, height + 2 * top), fill)
    padded.paste(picture, (left, top))
    return padded
