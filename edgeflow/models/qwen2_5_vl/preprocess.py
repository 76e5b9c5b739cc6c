"""An image of any size to patches, as transformers' torchvision preprocessor does it.

Resized on 8-bit channels with antialiased bicubic weights, which round as torchvision's do; the published Pillow
preprocessor differs from it by up to five grey levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.models.qwen2_5_vl.config import ImageRules, VisionConfig
from edgeflow_client.errors import InvalidArgument

MAX_ASPECT = 200


@dataclass(frozen=True, slots=True)
class Patches:
    """One image. values [h w, 3 2 14 14] float32, patches of a merged block side by side.

    grid: (h, w) in patches; merged_grid: in rows of the language model.
    """

    values: Tensor
    grid: tuple[int, int]
    merged_grid: tuple[int, int]


def resized_size(height: int, width: int, unit: int, least: int, most: int) -> tuple[int, int]:
    """Multiples of `unit` near the image's own sides, with an area of `least` to `most` pixels where that can be."""
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise InvalidArgument(f"an image of {width} x {height} is longer than {MAX_ASPECT} times its width")
    rounded = round(height / unit) * unit, round(width / unit) * unit
    if math.prod(rounded) > most:
        shrink = math.sqrt(height * width / most)
        return tuple(max(unit, math.floor(side / shrink / unit) * unit) for side in (height, width))  # type: ignore[return-value]
    if math.prod(rounded) < least:
        grow = math.sqrt(least / (height * width))
        return tuple(math.ceil(side * grow / unit) * unit for side in (height, width))  # type: ignore[return-value]
    return rounded


class ImagePreprocessor:
    """Callable: uint8 [H, W, 3] RGB → Patches."""

    def __init__(self, rules: ImageRules, config: VisionConfig) -> None:
        self._rules = rules
        self._config = config
        self._mean, self._std = (torch.tensor(each)[:, None, None] * 255 for each in (rules.mean, rules.std))

    def rows(self, height: int, width: int) -> int:
        """Rows of the language model that an image of this size takes."""
        return math.prod(self._size(height, width)) // self._config.unit**2

    def __call__(self, image: NDArray[np.uint8]) -> Patches:
        size = self._size(*image.shape[:2])
        pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))[None]
        if tuple(pixels.shape[-2:]) != size:
            pixels = F.interpolate(pixels, size, mode="bicubic", antialias=True, align_corners=False)
        return self._cut((pixels[0].float() - self._mean) / self._std)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        return resized_size(height, width, self._config.unit, self._rules.min_pixels, self._rules.max_pixels)

    def _cut(self, pixels: Tensor) -> Patches:
        """[3, height, width] → Patches; a still image is its own second frame."""
        patch, merge = self._config.patch_size, self._config.spatial_merge_size
        rows, columns = pixels.shape[1] // patch, pixels.shape[2] // patch
        tiles = pixels.view(3, rows // merge, merge, patch, columns // merge, merge, patch)
        tiles = tiles.permute(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]  # blocks, places in a block, channel, frame, …
        frames = tiles.expand(*[-1] * 5, self._config.temporal_patch_size, -1, -1)
        values = frames.reshape(rows * columns, self._config.patch_width)
        return Patches(values, (rows, columns), (rows // merge, columns // merge))
