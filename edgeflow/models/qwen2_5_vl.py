"""The vision part of Qwen2.5-VL: its configuration, images to patches, and the tower (reference: transformers).

Images are resized on 8-bit channels with antialiased bicubic weights, which round as those of transformers' torchvision
preprocessor do; the published Pillow preprocessor differs from it by up to five grey levels.

The tower has RMSNorm eps 1e-6, SwiGLU with biases, half-split rotary embedding of (row, column), attention within
windows of 8 x 8 patches but for a few blocks; then 2 x 2 patches are merged into one row of the language model.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.kernels.kv.layout import uploaded
from edgeflow.kernels.linear import Gemm, Linear
from edgeflow.kernels.row_operators import AddRmsNorm, RmsNorm
from edgeflow.kernels.table.dimensions import ROLES
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.varlen_attention import Sequences, VarlenAttention
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import MAX_SIZE
from edgeflow.models.vit import gemm
from edgeflow_client.errors import InvalidArgument

MAX_PIXELS = 16384 * 28 * 28  # of the released preprocessors
MIN_PIXELS = 4 * 28 * 28
MAX_ASPECT = 200
NORM_EPS = 1e-6
ROPE_THETA = 10000.0
MOST_GRIDS = 8  # image sizes whose index tensors are cached, 25 MB for the largest image


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """Sizes of the tower.

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
    """The side of an attention window in pixels."""
    full_blocks: tuple[int, ...]
    """The blocks whose attention spans the whole image."""
    image_token: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "image_token" else 1
            if field.name != "full_blocks" and not (type(value) is int and least <= value <= MAX_SIZE):
                raise ValueError(f"vision_config.{field.name} must be an integer, {least} to {MAX_SIZE}: {value!r}")
        if not all(type(each) is int for each in self.full_blocks):
            raise ValueError(f"vision_config.fullatt_block_indexes must be integers, got {self.full_blocks!r}")
        if self.hidden_size % (4 * self.num_heads):
            raise ValueError(f"vision_config: {self.num_heads} heads of a multiple of 4 do not make {self.hidden_size}")
        if self.window < 1:
            raise ValueError(
                f"vision_config.window_size {self.window_size} is smaller than a merged patch of {self.unit}"
            )

    @property
    def unit(self) -> int:
        """Pixels per side of a merged patch: sides of resized images are multiples of it."""
        return self.patch_size * self.spatial_merge_size

    @property
    def window(self) -> int:
        """Merged patches per side of a window."""
        return self.window_size // self.unit

    @property
    def patch_width(self) -> int:
        """The number of values of a patch: channels * frames * rows * columns."""
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


@dataclass(frozen=True, slots=True)
class Patches:
    """One image. values [h w, 3 2 14 14] float32, patches of a merged block side by side."""

    values: Tensor
    grid: tuple[int, int]
    """(h, w) in patches."""
    merged_grid: tuple[int, int]
    """(h, w) in rows of the language model."""


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
        """The rows of the language model that an image of this size takes."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _VisionWeights:
    """Weights of one block."""

    norm1: Tensor
    qkv: Linear
    proj: Linear
    norm2: Tensor
    gate_up: Linear
    """[2F, E]: gate and up, fused."""
    down: Linear

    @classmethod
    def of(cls, weights: Weights, config: VisionConfig) -> _VisionWeights:
        """weights: those below `blocks.<index>.`"""
        width, inner = config.hidden_size, config.intermediate_size
        gate, up = (weights.linear(f"mlp.{name}_proj", inner, width) for name in ("gate", "up"))
        bias = torch.cat([weights.take(f"mlp.{name}_proj.bias", inner) for name in ("gate", "up")])
        return cls(
            norm1=weights.take("norm1.weight", width),
            qkv=gemm(weights, "attn.qkv", 3 * width, width),
            proj=gemm(weights, "attn.proj", width, width),
            norm2=weights.take("norm2.weight", width),
            gate_up=Gemm(gate.cat([up]), bias),
            down=gemm(weights, "mlp.down_proj", width, inner),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """The part of a pass that images of one size share. Rows are patches, window by window, windows of one size side by
    side.
    """

    cos: Tensor
    """[n, 1, 1, D/2]: the cosines of each row."""
    sin: Tensor
    """[n, 1, 1, D/2]: the sines of each row."""
    windows: Sequences
    """The windows within which rows attend to each other."""
    whole: Sequences
    """The images within which rows attend to each other."""
    order: Tensor
    """[n]: the patch of each row."""
    back: Tensor
    """[n / 4]: the merged row of each place in the image."""

    @classmethod
    def of(cls, grid: tuple[int, int], config: VisionConfig, device: torch.device) -> _Grid:
        """grid: (h, w) in patches. Computed on the host, then copied to `device`."""
        rows, columns = _coordinates(grid, config.spatial_merge_size)
        quarter = config.hidden_size // config.num_heads // 4
        frequencies = ROPE_THETA ** -(torch.arange(quarter, dtype=torch.float32) / quarter)
        side = config.window * config.spatial_merge_size
        order, lengths = _windows(rows // side, columns // side)
        angles = torch.cat([place[order, None] * frequencies for place in (rows, columns)], dim=-1)[:, None, None]
        merged = order[:: config.spatial_merge_size**2] // config.spatial_merge_size**2
        return cls(
            cos=uploaded(angles.cos(), device),
            sin=uploaded(angles.sin(), device),
            windows=Sequences.of(lengths, device),
            whole=Sequences.of([len(rows)], device),
            order=uploaded(order, device),
            back=uploaded(merged.argsort(), device),
        )


class Qwen2_5VisionTower:
    """The vision tower with its merger. weights: names below its prefix (patch_embed.proj.weight, …)."""

    def __init__(self, weights: Weights, config: VisionConfig, table: OperatorTable | None = None) -> None:
        self._config = config
        width, merged = config.hidden_size, config.hidden_size * config.spatial_merge_size**2
        kernel = (width, 3, config.temporal_patch_size, config.patch_size, config.patch_size)
        self._kernel = weights.take("patch_embed.proj.weight", *kernel).flatten(1)
        self._blocks = [_VisionWeights.of(weights.under(f"blocks.{index}."), config) for index in range(config.depth)]
        operator = partial(self._operator, table or built_in_table())
        self._attend: dict[str, VarlenAttention] = {
            role: operator("varlen_attention", role) for role in ROLES["varlen_attention"]
        }
        self._norm: RmsNorm = operator("rms_norm", "input")
        self._add_post_norm: AddRmsNorm = operator("add_rms_norm", "post_attention")
        self._add_input_norm: AddRmsNorm = operator("add_rms_norm", "input")
        self._merge_norm = weights.take("merger.ln_q.weight", width)
        self._merge = [
            gemm(weights, "merger.mlp.0", merged, merged),
            gemm(weights, "merger.mlp.2", config.out_hidden_size, merged),
        ]
        self._grids: OrderedDict[tuple[int, int], _Grid] = OrderedDict()  # the one used last at the end

    def forward(self, image: Patches) -> Tensor:
        """Rows of the language model, line by line of the merged grid: [h w / 4, E]"""
        grid = self._grid(image.grid)
        x = F.linear(image.values.to(self._kernel)[grid.order], self._kernel)
        normed = self._norm(x, self._blocks[0].norm1, NORM_EPS)
        following = [*(block.norm1 for block in self._blocks[1:]), self._merge_norm]
        for index, (block, norm) in enumerate(zip(self._blocks, following, strict=True)):
            role = "full" if index in self._config.full_blocks else "window"
            x, normed = self._run(block, x, normed, norm=norm, grid=grid, role=role)
        x = normed.view(-1, self._config.spatial_merge_size**2 * normed.shape[-1])
        return self._merge[1](F.gelu(self._merge[0](x)))[grid.back]

    def _run(
        self, block: _VisionWeights, x: Tensor, normed: Tensor, *, norm: Tensor, grid: _Grid, role: str
    ) -> tuple[Tensor, Tensor]:
        """x [n, E] and its norm → those after the block. norm: weight of the norm that follows it; role: of its
        attention, "full" or "window"."""
        sequences = grid.whole if role == "full" else grid.windows
        qkv = block.qkv(normed).view(len(x), 3, self._config.num_heads, -1)
        q, k = _rotated(qkv[:, :2], grid).unbind(1)
        attended = block.proj(self._attend[role](q, k, qkv[:, 2], sequences).flatten(1))
        normed, x = self._add_post_norm(attended, x, block.norm2, NORM_EPS)
        gate, up = block.gate_up(normed).chunk(2, dim=-1)
        normed, x = self._add_input_norm(block.down(F.silu(gate) * up), x, norm, NORM_EPS)
        return x, normed

    def _grid(self, grid: tuple[int, int]) -> _Grid:
        """Cached for the sizes seen last: an image of one of them uploads nothing but its pixels."""
        if grid not in self._grids:
            self._grids[grid] = _Grid.of(grid, self._config, self._kernel.device)
        self._grids.move_to_end(grid)
        if len(self._grids) > MOST_GRIDS:
            self._grids.popitem(last=False)
        return self._grids[grid]

    def _operator(self, table: OperatorTable, name: str, role: str) -> Any:
        key = OperatorKey(op_name=name, model_name="qwen2_5_vl", layer_role=role, stage="prefill")
        return table.resolve(key, self._kernel.device, self._kernel.dtype)


def _coordinates(grid: tuple[int, int], merge: int) -> tuple[Tensor, Tensor]:
    """Row and column of each patch, in the order of Patches: block by block."""
    numbers = torch.arange(grid[0] * grid[1]).view(grid[0] // merge, merge, grid[1] // merge, merge)
    in_order = numbers.transpose(1, 2).flatten()
    return in_order // grid[1], in_order % grid[1]


def _windows(down: Tensor, right: Tensor) -> tuple[Tensor, list[int]]:
    """down, right [n]: the window of each patch. The patches window by window [n], and the patches of each window.

    Windows at the edges are smaller; the largest come first, so that few runs of one length attend. What is merged
    stays together.
    """
    _, window = torch.unique(torch.stack([down, right]), dim=1, return_inverse=True)
    lengths = torch.bincount(window)
    largest_first = torch.argsort(lengths, descending=True, stable=True)
    order = torch.argsort(largest_first.argsort()[window], stable=True)
    return order, lengths[largest_first].tolist()


def _rotated(x: Tensor, grid: _Grid) -> Tensor:
    """[n, 2, H, D], in float32 as published."""
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat([low * grid.cos - high * grid.sin, high * grid.cos + low * grid.sin], dim=-1).to(x.dtype)
