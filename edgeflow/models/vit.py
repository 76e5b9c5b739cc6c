"""Vision transformers as timm publishes them: patch features of one block, no final norm.

Published source: timm/models/vision_transformer.py.

LayerNorm eps 1e-6, exact GELU, fused qkv with bias; LayerScale and prefix tokens where the checkpoint has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.linear import Gemm, Linear, linear_gelu
from edgeflow.kernels.row_operators import AddLayerNorm
from edgeflow.kernels.table.bind_linear import plain_linears
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.varlen_attention import Sequences, VarlenAttention
from edgeflow.kernels.weights import FloatWeight
from edgeflow.models.checkpoint import Weights
from edgeflow_client.errors import CheckpointError

LAYER_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionBlock:
    """The weights of a pre-norm block."""

    norm1: tuple[Tensor, Tensor]
    """Weight and bias."""
    qkv: Linear
    proj: Linear
    norm2: tuple[Tensor, Tensor]
    """Weight and bias."""
    fc1: Linear
    """A product with the GELU after it. A LayerScale is folded into the projections that it scales."""
    fc2: Linear


class VisionBlocks:
    """Blocks one after the other, over images laid one after the other.

    like: a tensor in their dtype on their device. table: None for the built-in one.
    """

    def __init__(
        self, blocks: Sequence[VisionBlock], heads: int, like: Tensor, *, table: OperatorTable | None = None
    ) -> None:
        self._blocks, self._heads = tuple(blocks), heads
        operator = partial(_operator, table or built_in_table(), like)
        self._attend: VarlenAttention = operator("varlen_attention", "full")
        self._add_input_norm: AddLayerNorm = operator("add_layer_norm", "input")
        self._add_post_norm: AddLayerNorm = operator("add_layer_norm", "post_attention")

    def __call__(self, x: Tensor, sequences: Sequences) -> Tensor:
        """[L, E] → [L, E]. The output of a block waits for the norm that follows, which adds it to the residual in the
        same launch."""
        added: Tensor | None = None
        for block in self._blocks:
            if added is None:
                normed = F.layer_norm(x, x.shape[1:], *block.norm1, LAYER_NORM_EPS)
            else:
                normed, x = self._add_input_norm(added, x, *block.norm1, LAYER_NORM_EPS)
            q, k, v = block.qkv(normed).view(len(x), 3, self._heads, -1).unbind(1)
            attended = block.proj(self._attend(q, k, v, sequences).flatten(1))
            normed, x = self._add_post_norm(attended, x, *block.norm2, LAYER_NORM_EPS)
            added = block.fc2(block.fc1(normed))
        return x if added is None else x + added


def _operator(table: OperatorTable, like: Tensor, name: str, role: str) -> Any:
    key = OperatorKey(op_name=name, model_name="vit", layer_role=role, stage="prefill")
    return table.resolve(key, like.device, like.dtype)


class VisionTower:
    """The first `blocks` blocks of a tower, for square images of `image_side` pixels.

    weights: names below the tower's prefix (patch_embed.proj.weight, blocks.0.norm1.weight, …), which fix all sizes.
    width: E. patches: rows of features per image.
    """

    def __init__(
        self, weights: Weights, *, heads: int, blocks: int, image_side: int, table: OperatorTable | None = None
    ) -> None:
        kernel = weights.take("patch_embed.proj.weight", None, 3, None, None)
        self.width, self._patch = kernel.shape[0], kernel.shape[-1]
        if self.width % heads:
            raise CheckpointError(f"num_heads: {heads} heads do not divide a vision tower of width {self.width}")
        if image_side < self._patch:
            raise CheckpointError(f"image_sizes: {image_side} is less than the patch of {self._patch} pixels")
        self.patches = (image_side // self._patch) ** 2
        self._kernel = kernel.flatten(1)
        self._bias = weights.take("patch_embed.proj.bias", self.width)
        self._position = weights.take("pos_embed", 1, self.patches, self.width)[0]
        prefix = [weights.take(name, 1, None, self.width)[0] for name in ("cls_token", "reg_token") if name in weights]
        self._prefix = torch.cat([kernel.new_zeros(0, self.width), *prefix])
        own = [_block(weights.under(f"blocks.{index}."), self.width, table) for index in range(blocks)]
        self._blocks = VisionBlocks(own, heads, kernel, table=table)

    def forward(self, pixels: Tensor) -> Tensor:
        """[B, 3, side, side] → [B, patches, E]; class and register tokens, which have no position, are stripped."""
        x = F.linear(unfold(pixels, self._patch), self._kernel, self._bias) + self._position
        if len(self._prefix):
            x = torch.cat([self._prefix.expand(x.shape[0], -1, -1), x], dim=1)
        batch, tokens, _ = x.shape
        sequences = Sequences.equal(batch, tokens, x.device)
        x = self._blocks(x.flatten(0, 1), sequences)
        return x.view(batch, tokens, self.width)[:, len(self._prefix) :]


def _block(weights: Weights, width: int, table: OperatorTable | None) -> VisionBlock:
    """weights: those below `blocks.<index>.`"""
    inner = weights.take("mlp.fc1.bias", None).shape[0]
    fc1 = weights.linear("mlp.fc1", inner, width)
    return VisionBlock(
        norm1=norm_weights(weights, "norm1", width),
        qkv=_linear(weights, "attn.qkv", 3 * width, width),
        proj=_linear(weights, "attn.proj", width, width, scale="ls1"),
        norm2=norm_weights(weights, "norm2", width),
        fc1=linear_gelu(fc1, weights.take("mlp.fc1.bias", inner), "none", plain=plain_linears(table, fc1)),
        fc2=_linear(weights, "mlp.fc2", width, inner, scale="ls2"),
    )


def norm_weights(weights: Weights, name: str, width: int) -> tuple[Tensor, Tensor]:
    """Weight and bias of a LayerNorm."""
    return weights.take(f"{name}.weight", width), weights.take(f"{name}.bias", width)


def gemm(weights: Weights, name: str, outputs: int, inputs: int) -> Linear:
    """A projection with its bias, over the weight as it lies."""
    return Gemm(weights.linear(name, outputs, inputs), weights.take(f"{name}.bias", outputs))


def unfold(pixels: Tensor, patch: int) -> Tensor:
    """[B, 3, side, side] → [B, patches, 3 p p], patches row by row: the convolution as a matrix product.

    Pixels beyond the last whole patch are left out, as a convolution does.
    """
    batch, channels, height, width = pixels.shape
    rows, columns = height // patch, width // patch
    pixels = pixels[..., : rows * patch, : columns * patch]
    tiles = pixels.reshape(batch, channels, rows, patch, columns, patch).permute(0, 2, 4, 1, 3, 5)
    return tiles.reshape(batch, rows * columns, -1)


def _linear(weights: Weights, name: str, out: int, into: int, *, scale: str = "") -> Linear:
    """scale: of its outputs (LayerScale), where the checkpoint has one under its published name or under timm's own."""
    weight, bias = weights.linear(name, out, into), weights.take(f"{name}.bias", out)
    for published in (f"{scale}.scale_factor", f"{scale}.gamma"):
        if published in weights:
            gamma = weights.take(published, out)
            return Gemm(FloatWeight(weight.floats() * gamma[:, None]), bias * gamma)
    return Gemm(weight, bias)
