"""Camera frames to pixel values, exactly as the published processor computes them, on the host or on the device.

Published source: OpenVLA's prismatic/extern/hf/processing_prismatic.py.

On the device: Pillow resizes 8-bit images in integers: the taps of an output pixel are rounded to 22 binary
places, the products are summed, and the sum is rounded to 8 bits, along the rows first, then along the columns. Here
each axis is one matrix product in float32. The taps enter as three digits of 8 bits, so that every sum on the way is an
integer below 2^24: exact, in whatever order it is summed. The digits are put together in int32, as Pillow sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from edgeflow.policies.openvla.config import ImageConfig, TowerImage

CROP_AREA = 0.9
_REACH = {"bilinear": 1, "bicubic": 2, "lanczos": 3}
"""How far each resampling kernel reaches, in pixels of the smaller image."""
LONGEST = 2048  # pixels of a side
KEPT_SIZES = 8  # frame sizes whose plans stay on the device
_PLACES = 22  # binary places of Pillow's taps


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
        resized = {kind: np.asarray(self._resize(picture, Image.Resampling[kind.upper()])) for kind in kinds(config)}
        scaled = {kind: _unit_range(levels.transpose(2, 0, 1)) for kind, levels in resized.items()}
        return np.concatenate([_normalised(scaled[tower.interpolation], tower) for tower in config.towers])

    def _resize(self, picture: Image.Image, resampling: Image.Resampling) -> Image.Image:
        """Resize along the rows first, as Pillow did until 13, which reverses the order for some upright frames."""
        side, size = self._config.side, scaled_size(self._config, *picture.size)
        picture = picture.resize((size[0], picture.height), resampling).resize(size, resampling)
        left, top = (middle(length, side) for length in size)
        return picture.crop((left, top, left + side, top + side))


def kinds(config: ImageConfig) -> list[str]:
    """The interpolations of the towers, each once."""
    return list(dict.fromkeys(tower.interpolation for tower in config.towers))


def level_table(config: ImageConfig) -> NDArray[np.float32]:
    """[3 * towers, 256]: the value of each level of each channel, one tower after the other."""
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
    rows = _sampled(unit, _crop_axis(image.shape[0], side))
    crop = _sampled(rows.swapaxes(0, 1), _crop_axis(image.shape[1], side)).swapaxes(0, 1)
    cropped: NDArray[np.uint8] = (np.clip(crop, 0, 1) * np.float32(255.5)).astype(np.uint8)
    return cropped


def _crop_axis(length: int, side: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Three [side]: pixels on either side of each place where the crop samples an axis of so many, and the share of the
    second."""
    extent = np.float32(CROP_AREA**0.5)
    steps = (1 - extent) / 2 + extent * np.linspace(0, 1, side, dtype=np.float32)
    places = steps * (length - 1)
    low = np.floor(places).astype(np.int64)
    return low, np.minimum(low + 1, length - 1), (places - low).astype(np.float32)


def _sampled(values: Any, axis: Sequence[Any]) -> Any:
    """Linear interpolation along the first axis, of NumPy's arrays or of torch's."""
    low, high, share = axis
    first = values[low]
    return first + (values[high] - first) * share[:, None, None]


def _unit_range(levels: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.ascontiguousarray(levels, np.float32) / np.float32(255)


def _normalised(unit: NDArray[np.float32], tower: TowerImage) -> NDArray[np.float32]:
    """[3, ...] in 0 .. 1 → normalised for the tower."""
    mean, std = (np.asarray(each, np.float32).reshape(3, *[1] * (unit.ndim - 1)) for each in (tower.mean, tower.std))
    values: NDArray[np.float32] = (unit - mean) / std
    return values


def _letterbox(picture: Image.Image, fill: tuple[int, ...]) -> Image.Image:
    width, height = picture.size
    left, top = letterbox_margins(width, height)
    padded = Image.new("RGB", (width + 2 * left, height + 2 * top), fill)
    padded.paste(picture, (left, top))
    return padded


def _height(interpolation: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The height of a resampling kernel at distances x; the cubic is Keys', with a = -1/2."""
    x = np.abs(x)
    if interpolation == "bilinear":
        height: NDArray[np.float64] = np.maximum(1 - x, 0)
        return height
    if interpolation == "lanczos":
        return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0)
    near, far = (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _taps_of(length: int, scaled: int, interpolation: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[scaled, n]: pixels of an axis that make each pixel of the scaled one, and what they give, in units of 2^-22.

    Pixels beyond the axis count nothing.
    """
    step = length / scaled
    stretch = max(step, 1.0)
    reach = _REACH[interpolation] * stretch
    centre = ((np.arange(scaled) + 0.5) * step)[:, None]
    first = np.trunc(centre - reach + 0.5).clip(0)
    end = np.trunc(centre + reach + 0.5).clip(None, length)
    pixels = first + np.arange(2 * int(np.ceil(reach)) + 1)
    heights = np.where(pixels < end, _height(interpolation, (pixels - centre + 0.5) * (1 / stretch)), 0)
    shares = heights / np.cumsum(heights, axis=1)[:, -1:]  # summed from the left, as Pillow does
    given = np.trunc(shares * (1 << _PLACES) + np.copysign(0.5, shares))
    return pixels.astype(np.int64), given.astype(np.int64)


def _matrix(length: int, scaled: int, interpolation: str) -> NDArray[np.float32]:
    """[3 scaled, length]: the taps' digits of 8 bits, -128 .. 127, lowest first: `scaled` rows of each."""
    pixels, rest = _taps_of(length, scaled, interpolation)
    matrix = np.zeros((3, scaled, length + pixels.shape[1]), np.float32)
    for place in matrix:
        digit = (rest + 128) % 256 - 128
        np.put_along_axis(place, pixels, digit.astype(np.float32), axis=1)
        rest = (rest - digit) // 256
    return np.ascontiguousarray(matrix[:, :, :length]).reshape(3 * scaled, length)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan for frames of one size."""

    crop: list[list[Tensor]] | None
    """For rows and columns, `_crop_axis`."""
    taps: dict[str, tuple[Tensor | None, Tensor | None]]
    """Per interpolation, the taps of the columns [3 side, W] and of the rows [3 side, H]; None where an axis already
    has its size.
    """
    cut: tuple[slice, slice, slice]


class EitherPreprocessor:
    """Callable: uint8 [H, W, 3] RGB → float32 [3 * towers, side, side], on a device or on the host.

    device: where images are preprocessed if they are not too long for it; None = all on the host.
    """

    def __init__(self, config: ImageConfig, device: torch.device | None) -> None:
        self._host = Preprocessor(config)
        self._on_device = DevicePreprocessor(config, device) if device else None

    def __call__(self, image: NDArray[np.uint8]) -> Tensor:
        if self._on_device and max(image.shape) <= self._on_device.longest:
            return self._on_device(image)
        return torch.from_numpy(self._host(image))


class DevicePreprocessor:
    """Callable: uint8 [H, W, 3] RGB on the host → float32 [3 * towers, side, side] on the device.

    Enqueues: nothing waits for the device but the first frame of a size, whose plan is uploaded. longest: pixels of a
    frame's longer side, at most, so that sums stay below 2^24 and a frame takes tens of megabytes.
    """

    def __init__(self, config: ImageConfig, device: torch.device) -> None:
        self._config = config
        self._device = device
        self.longest = min(LONGEST, 64 * config.side)
        self._levels = self._tensor(level_table(config))
        self._fill = self._tensor(np.array(letterbox_fill(config), np.uint8))
        self._plan = lru_cache(maxsize=KEPT_SIZES)(self._new_plan)

    def __call__(self, image: NDArray[np.uint8]) -> Tensor:
        raw = torch.empty(image.shape, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        raw.numpy()[...] = image
        return self.pixels(raw.to(self._device, non_blocking=True))

    def pixels(self, image: Tensor) -> Tensor:
        """The pixel values of a frame on the device."""
        config, (height, width, _) = self._config, image.shape
        plan = self._plan(height, width)
        if plan.crop:
            image = _cropped(image, *plan.crop)
        if config.strategy == "letterbox":
            image = self._letterboxed(image)
        planes = image.permute(2, 0, 1).float()
        scaled = {kind: _scaled(planes, *taps)[plan.cut] for kind, taps in plan.taps.items()}
        levels = torch.cat([scaled[tower.interpolation] for tower in config.towers])
        return self._levels.gather(1, levels.flatten(1).long()).view(levels.shape)

    def _letterboxed(self, image: Tensor) -> Tensor:
        height, width, _ = image.shape
        left, top = letterbox_margins(width, height)
        padded = self._fill.expand(height + 2 * top, width + 2 * left, 3).clone()
        padded[top : top + height, left : left + width] = image
        return padded

    def _new_plan(self, height: int, width: int) -> _Plan:
        side, crop = self._config.side, None
        if self._config.center_crop:
            crop = [[self._tensor(part) for part in _crop_axis(length, side)] for length in (height, width)]
            height = width = side
        if self._config.strategy == "letterbox":
            left, top = letterbox_margins(width, height)
            height, width = height + 2 * top, width + 2 * left
        scaled = scaled_size(self._config, width, height)
        left, top = (middle(length, side) for length in scaled)
        taps = {
            kind: (self._taps(width, scaled[0], kind), self._taps(height, scaled[1], kind))
            for kind in kinds(self._config)
        }
        return _Plan(crop, taps, (slice(3), slice(top, top + side), slice(left, left + side)))

    def _taps(self, length: int, scaled: int, kind: str) -> Tensor | None:
        return None if length == scaled else self._tensor(_matrix(length, scaled, kind))

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def _scaled(planes: Tensor, columns: Tensor | None, rows: Tensor | None) -> Tensor:
    """[3, H, W] → [3, h, w]: along the rows first; levels all the way, as float32."""
    if columns is not None:
        planes = _resampled(planes, columns)
    return planes if rows is None else _resampled(planes.mT, rows).mT


def _resampled(planes: Tensor, taps: Tensor) -> Tensor:
    """[3, n, m] levels x [3 k, m] → [3, n, k] levels"""
    low, middle, high = (planes @ taps.T).int().chunk(3, dim=-1)
    total = low + (middle << 8) + (high << 16) + (1 << _PLACES - 1)
    return (total >> _PLACES).clamp(0, 255).float()


def _cropped(image: Tensor, rows: Sequence[Tensor], columns: Sequence[Tensor]) -> Tensor:
    """`center_crop`: the same operations in the same order, each rounded by itself."""
    unit = image.float() * (1 / 255)
    crop: Tensor = _sampled(_sampled(unit, rows).transpose(0, 1), columns).transpose(0, 1)
    return (crop.clamp(0, 1) * 255.5).byte()
