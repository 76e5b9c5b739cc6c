"""Qwen2.5-VL's vision tower: windowed attention over patches of an image of any size (reference: transformers).

RMSNorm eps 1e-6, SwiGLU with biases, half-split rotary embedding of (row, column), attention within windows of
8 x 8 patches but for a few blocks; then 2 x 2 patches are merged into one row of the language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.dimensions import ROLES
from edgeflow.kernels.layout import on_device
from edgeflow.kernels.table import OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.varlen_attention import VarlenAttention
from edgeflow.models.checkpoint import Weights
from edgeflow.models.qwen2_5_vl.config import VisionConfig
from edgeflow.models.qwen2_5_vl.preprocess import Patches

NORM_EPS = 1e-6
ROPE_THETA = 10000.0
Linear = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class _Block:
    """Weights and biases in pairs; gate_up [2F, E]."""

    norm1: Tensor
    qkv: Linear
    proj: Linear
    norm2: Tensor
    gate_up: Linear
    down: Linear

    @classmethod
    def of(cls, weights: Weights, config: VisionConfig) -> _Block:
        """weights: those below `blocks.<index>.`"""
        width, inner = config.hidden_size, config.intermediate_size
        gate, up = (_linear(weights, f"mlp.{name}_proj", inner, width) for name in ("gate", "up"))
        return cls(
            norm1=weights.take("norm1.weight", width),
            qkv=_linear(weights, "attn.qkv", 3 * width, width),
            proj=_linear(weights, "attn.proj", width, width),
            norm2=weights.take("norm2.weight", width),
            gate_up=(torch.cat([gate[0], up[0]]), torch.cat([gate[1], up[1]])),
            down=_linear(weights, "mlp.down_proj", width, inner),
        )


@dataclass(frozen=True, slots=True)
class _Places:
    """Of an image's patches, window by window: cos, sin [n, 1, D/2].

    windows, whole: where the sequences that see each other start [windows + 1], and the longest of them, within
    windows and in the whole image. order [n]: where each patch comes from. back [n / 4]: where each merged row lies.
    """

    cos: Tensor
    sin: Tensor
    windows: tuple[Tensor, int]
    whole: tuple[Tensor, int]
    order: Tensor
    back: Tensor


class VisionTower:
    """weights: names below the tower's prefix (patch_embed.proj.weight, blocks.0.norm1.weight, …)."""

    def __init__(self, weights: Weights, config: VisionConfig, table: OperatorTable | None = None) -> None:
        self._config = config
        width, merged = config.hidden_size, config.hidden_size * config.spatial_merge_size**2
        kernel = (width, 3, config.temporal_patch_size, config.patch_size, config.patch_size)
        self._kernel = weights.take("patch_embed.proj.weight", *kernel).flatten(1)
        self._blocks = [_Block.of(weights.under(f"blocks.{index}."), config) for index in range(config.depth)]
        key, like = OperatorKey("varlen_attention", "qwen2_5_vl", stage="prefill"), self._kernel
        self._attend: dict[str, VarlenAttention] = {
            role: (table or built_in_table()).resolve(replace(key, layer_role=role), like.device, like.dtype)
            for role in ROLES["varlen_attention"]
        }
        self._merge_norm = weights.take("merger.ln_q.weight", width)
        self._merge = [
            _linear(weights, "merger.mlp.0", merged, merged),
            _linear(weights, "merger.mlp.2", config.out_hidden_size, merged),
        ]

    def forward(self, image: Patches) -> Tensor:
        """Rows of the language model, line by line of the merged grid: [h w / 4, E]"""
        places = self._places(image.grid)
        x = F.linear(image.values.to(self._kernel)[places.order], self._kernel)
        for index, block in enumerate(self._blocks):
            x = self._run(block, x, places, "full" if index in self._config.full_blocks else "window")
        x = F.rms_norm(x, self._merge_norm.shape, self._merge_norm, NORM_EPS)
        x = x.view(-1, self._config.spatial_merge_size**2 * x.shape[-1])
        return F.linear(F.gelu(F.linear(x, *self._merge[0])), *self._merge[1])[places.back]

    def _run(self, block: _Block, x: Tensor, places: _Places, role: str) -> Tensor:
        sequences = places.whole if role == "full" else places.windows
        normed = F.rms_norm(x, block.norm1.shape, block.norm1, NORM_EPS)
        qkv = F.linear(normed, *block.qkv).view(len(x), 3, self._config.num_heads, -1)
        q, k = _turned(qkv[:, :2], places).unbind(1)
        x = x + F.linear(self._attend[role](q, k, qkv[:, 2], *sequences).flatten(1), *block.proj)
        gate, up = F.linear(F.rms_norm(x, block.norm2.shape, block.norm2, NORM_EPS), *block.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, *block.down)

    def _places(self, grid: tuple[int, int]) -> _Places:
        config, device = self._config, self._kernel.device
        rows, columns = _coordinates(grid, config.spatial_merge_size)
        quarter = config.hidden_size // config.num_heads // 4
        frequencies = ROPE_THETA ** -(torch.arange(quarter, dtype=torch.float32) / quarter)
        angles = torch.cat([place[:, None] * frequencies for place in (rows, columns)], dim=-1).to(device)
        side = config.window * config.spatial_merge_size
        order, windows = _windows(rows // side, columns // side)
        merged = order[:: config.spatial_merge_size**2] // config.spatial_merge_size**2
        return _Places(
            angles.cos()[order, None],
            angles.sin()[order, None],
            _sequences(windows, device),
            _sequences([len(rows)], device),
            order.to(device),
            merged.argsort().to(device),
        )


def _coordinates(grid: tuple[int, int], merge: int) -> tuple[Tensor, Tensor]:
    """Row and column of each patch, in the order of Patches: block by block."""
    numbers = torch.arange(grid[0] * grid[1]).view(grid[0] // merge, merge, grid[1] // merge, merge)
    in_order = numbers.transpose(1, 2).flatten()
    return in_order // grid[1], in_order % grid[1]


def _windows(down: Tensor, right: Tensor) -> tuple[Tensor, list[int]]:
    """By the window's place [n] of each patch: patches window by window [n], and how many each has; windows at the
    edges are smaller. What is merged stays together."""
    _, window = torch.unique(torch.stack([down, right]), dim=1, return_inverse=True)
    return torch.argsort(window, stable=True), torch.bincount(window).tolist()


def _sequences(lengths: Sequence[int], device: torch.device) -> tuple[Tensor, int]:
    """Where sequences laid one after the other start, and the longest."""
    return on_device([0, *accumulate(lengths)], device, torch.int32), max(lengths)


def _turned(x: Tensor, places: _Places) -> Tensor:
    """[n, 2, H, D], in float32 as published."""
    low, high = x.float().chunk(2, dim=-1)
    cos, sin = places.cos[:, None], places.sin[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(x.dtype)


def _linear(weights: Weights, name: str, out: int, into: int) -> Linear:
    return weights.take(f"{name}.weight", out, into), weights.take(f"{name}.bias", out)
