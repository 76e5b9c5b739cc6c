"""Vision transformers as timm publishes them: patch features of one block, no final norm (vla_numerics 3.1).

LayerNorm eps 1e-6, exact GELU, fused qkv with bias; LayerScale and prefix tokens where the checkpoint has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

LAYER_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class _Block:
    """Matrices are kept transposed for addmm. LayerScale is folded into the projections that it scales."""

    norm1: tuple[Tensor, Tensor]
    qkv: tuple[Tensor, Tensor]
    proj: tuple[Tensor, Tensor]
    norm2: tuple[Tensor, Tensor]
    fc1: tuple[Tensor, Tensor]
    fc2: tuple[Tensor, Tensor]


class VisionTower:
    """weights: names below the tower's prefix (patch_embed.proj.weight, blocks.0.norm1.weight, …).

    blocks: how many are run; the features are the last one's output.
    """

    def __init__(self, weights: Mapping[str, Tensor], heads: int, blocks: int) -> None:
        kernel = weights["patch_embed.proj.weight"]  # [E, 3, p, p]
        self.width = kernel.shape[0]
        self.patch = kernel.shape[-1]
        self.heads = heads
        self._kernel = kernel.flatten(1)
        self._bias = weights["patch_embed.proj.bias"]
        self._position = weights["pos_embed"][0]
        prefix = [weights[name][0] for name in ("cls_token", "reg_token") if name in weights]
        self._prefix = torch.cat(prefix) if prefix else kernel.new_zeros(0, self.width)
        self._blocks = [_block(weights, f"blocks.{index}.") for index in range(blocks)]

    def patches(self, image_side: int) -> int:
        return (image_side // self.patch) ** 2

    def forward(self, pixels: Tensor) -> Tensor:
        """[B, 3, side, side] → [B, patches, E]; class and register tokens are stripped."""
        x = F.linear(_unfold(pixels, self.patch), self._kernel, self._bias) + self._position
        if len(self._prefix):
            x = torch.cat([self._prefix.expand(x.shape[0], -1, -1), x], dim=1)
        for block in self._blocks:
            x = self._run(block, x)
        return x[:, len(self._prefix) :]

    def _run(self, block: _Block, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        normed = F.layer_norm(x, (width,), *block.norm1, LAYER_NORM_EPS)
        qkv = F.linear(normed, *block.qkv).view(batch, tokens, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
        x = x + F.linear(attended, *block.proj)
        normed = F.layer_norm(x, (width,), *block.norm2, LAYER_NORM_EPS)
        return x + F.linear(F.gelu(F.linear(normed, *block.fc1)), *block.fc2)


def _unfold(pixels: Tensor, patch: int) -> Tensor:
    """[B, 3, side, side] → [B, patches, 3 p p], patches row by row: the convolution as a matrix product."""
    batch, channels, height, width = pixels.shape
    rows, columns = height // patch, width // patch
    tiles = pixels.view(batch, channels, rows, patch, columns, patch).permute(0, 2, 4, 1, 3, 5)
    return tiles.reshape(batch, rows * columns, -1)


def _block(weights: Mapping[str, Tensor], prefix: str) -> _Block:
    def pair(name: str) -> tuple[Tensor, Tensor]:
        return weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"]

    def scaled(name: str, scale: str) -> tuple[Tensor, Tensor]:
        weight, bias = pair(name)
        gamma = weights.get(f"{prefix}{scale}.scale_factor", weights.get(f"{prefix}{scale}.gamma"))
        return (weight, bias) if gamma is None else (weight * gamma[:, None], bias * gamma)

    return _Block(
        pair("norm1"),
        pair("attn.qkv"),
        scaled("attn.proj", "ls1"),
        pair("norm2"),
        pair("mlp.fc1"),
        scaled("mlp.fc2", "ls2"),
    )
