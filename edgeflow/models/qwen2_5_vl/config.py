"""The vision part of Qwen2.5-VL's JSON files (reference: transformers' Qwen2.5-VL)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from edgeflow.models.llama import MAX_SIZE

MAX_PIXELS = 16384 * 28 * 28  # of the released preprocessors
MIN_PIXELS = 4 * 28 * 28


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """Sizes of the tower. window_size: pixels; full_blocks: where attention spans the whole image.

    image_token, start_token: ids of a place for an image row, and of the mark before an image.
    """

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    out_hidden_size: int
    patch_size: int
    spatial_merge_size: int
    temporal_patch_size: int
    window_size: int
    full_blocks: tuple[int, ...]
    image_token: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "image_token" else 1
            if field.name != "full_blocks" and not (type(value) is int and least <= value <= MAX_SIZE):
                raise ValueError(f"vision_config.{field.name} must be a whole number, {least} to {MAX_SIZE}: {value!r}")
        if not all(type(each) is int for each in self.full_blocks):
            raise ValueError(f"vision_config.fullatt_block_indexes must be whole numbers, got {self.full_blocks!r}")
        if self.hidden_size % (4 * self.num_heads):
            raise ValueError(f"vision_config: {self.num_heads} heads of a multiple of 4 do not make {self.hidden_size}")
        if self.window < 1:
            raise ValueError(
                f"vision_config.window_size {self.window_size} is smaller than a merged patch of {self.unit}"
            )

    @property
    def unit(self) -> int:
        """Pixels of a merged patch's side: sides of resized images are multiples of it."""
        return self.patch_size * self.spatial_merge_size

    @property
    def window(self) -> int:
        """Merged patches of a window's side."""
        return self.window_size // self.unit

    @property
    def patch_width(self) -> int:
        """Numbers of a patch: channels, frames, rows, columns."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> VisionConfig:
        """values: all of config.json. ValueError, KeyError or TypeError says what is wrong or not served."""
        vision = values["vision_config"]
        if vision.get("hidden_act", "silu") != "silu":
            raise ValueError(f"vision_config.hidden_act {vision['hidden_act']!r} is not supported; supported: silu")
        if vision.get("in_chans", vision.get("in_channels", 3)) != 3:
            raise ValueError("vision_config.in_channels: must be 3")
        defaults = {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112}
        sizes = {
            field.name: vision.get(field.name, defaults.get(field.name))
            for field in fields(cls)
            if field.name not in ("full_blocks", "image_token")
        }
        return cls(
            **sizes, full_blocks=tuple(vision.get("fullatt_block_indexes") or ()), image_token=values["image_token_id"]
        )


@dataclass(frozen=True, slots=True)
class ImageRules:
    """Preprocessing of an image: bounds of the resized area in pixels, normalisation of 0 .. 255 per channel."""

    min_pixels: int
    max_pixels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, processor: Mapping[str, Any]) -> ImageRules:
        """processor: preprocessor_config.json, or its newer place in processor_config.json."""
        if not all(processor.get(step, True) for step in ("do_resize", "do_rescale", "do_normalize")):
            raise ValueError("do_resize, do_rescale and do_normalize must be on")
        if processor.get("resample", 3) != 3:
            raise ValueError(f"resample {processor['resample']!r} is not supported; supported: 3 (bicubic)")
        size = processor.get("size") or {}
        least = processor.get("min_pixels") or size.get("shortest_edge") or MIN_PIXELS
        most = processor.get("max_pixels") or size.get("longest_edge") or MAX_PIXELS
        if not (type(least) is int and type(most) is int and 1 <= least <= most <= MAX_PIXELS):
            raise ValueError(f"min_pixels {least!r} and max_pixels {most!r}: from 1 to {MAX_PIXELS}, in this order")
        mean, std = (tuple(map(float, processor[name])) for name in ("image_mean", "image_std"))
        if len(mean) != 3 or len(std) != 3 or not all(math.isfinite(each) for each in mean) or min(std) <= 0:
            raise ValueError("image_mean and image_std need three numbers, and no std of 0")
        return cls(least, most, mean, std)
