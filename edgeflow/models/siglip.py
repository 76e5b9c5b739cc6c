"""SigLIP towers as transformers publishes them, and the projections of their features to a language model's width.

Published source: transformers' modeling_siglip.py and modeling_smolvlm.py. Unlike towers of timm (models/vit.py) they
have GELU in its tanh form, separate q, k and v, and a norm after the last block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.linear import Gemm, Linear, linear_gelu
from edgeflow.kernels.table.bind_linear import bind_linear_stage, plain_linears
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.varlen_attention import Sequences
from edgeflow.kernels.weights import Weight
from edgeflow.models.checkpoint import Weights
from edgeflow.models.vit import LAYER_NORM_EPS, VisionBlock, VisionBlocks, norm_weights, unfold
from edgeflow_client.errors import CheckpointError

ROWS = 1024
"""Patches that are computed together on a CPU: activations of more images leave its cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerSizes:
    """Sizes of a vision tower."""

    width: int
    """E, the width of the tower."""
    inner: int
    """F, the width of its MLPs."""
    layers: int
    heads: int
    patch: int
    """Pixels per side of a patch."""
    grid: int
    """Patches per side for which positions were learned."""


class SigLIPTower:
    """A tower for square images of `side` pixels. weights: names below its prefix (embeddings.patch_embedding.weight,
    encoder.layers.0.layer_norm1.weight, …, post_layernorm.weight).

    embeddings: the dtype of the embeddings of patches and positions, by default that of the weights. patches: rows of
    features per image.
    """

    def __init__(
        self,
        sizes: TowerSizes,
        weights: Weights,
        *,
        side: int,
        table: OperatorTable | None = None,
        embeddings: torch.dtype | None = None,
    ) -> None:
        width, patch = sizes.width, sizes.patch
        if side % patch or side > sizes.grid * patch:
            raise CheckpointError(
                f"images of {side} pixels; served: multiples of the patch, {patch}, to {sizes.grid * patch}"
            )
        count = side // patch
        self.width, self.patches, self._patch = width, count**2, patch
        embedding = weights.under("embeddings.").to(embeddings or weights.dtype)
        self._kernel = embedding.take("patch_embedding.weight", width, 3, patch, patch).flatten(1)
        self._bias = embedding.take("patch_embedding.bias", width)
        learned = embedding.take("position_embedding.weight", sizes.grid**2, width)
        self._position = learned[grid_positions(count, sizes.grid).to(learned.device)]
        blocks = [_block(weights.under(f"encoder.layers.{index}."), sizes, table) for index in range(sizes.layers)]
        self._norm = norm_weights(weights, "post_layernorm", width)
        self._blocks = VisionBlocks(blocks, sizes.heads, self._norm[0], table=table)

    def forward(self, pixels: Tensor) -> Tensor:
        """[B, 3, side, side] → [B, patches, E]"""
        together = max(1, ROWS // self.patches) if pixels.is_cpu else len(pixels)
        parts = [self._features(some) for some in torch.split(pixels, together)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _features(self, pixels: Tensor) -> Tensor:
        patches = unfold(pixels.to(self._kernel.dtype), self._patch)
        x = (F.linear(patches, self._kernel, self._bias) + self._position).to(self._norm[0].dtype)
        batch = len(x)
        x = self._blocks(x.flatten(0, 1), Sequences.equal(batch, self.patches, x.device))
        return F.layer_norm(x, (self.width,), *self._norm, LAYER_NORM_EPS).view(batch, self.patches, self.width)


@contextmanager
def products_in_tf32() -> Iterator[None]:
    """Products of float32 within are in TF32 on a GPU: 10 bits of mantissa, several times the speed. A graph that
    records them keeps it. The setting is the process's, so it is restored.
    """
    matmul = torch.backends.cuda.matmul
    name, value = ("fp32_precision", "tf32") if hasattr(matmul, "fp32_precision") else ("allow_tf32", True)
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def grid_positions(count: int, grid: int) -> Tensor:
    """The learned positions of count x count patches, row by row: [count²] int64. An image of fewer patches than the
    `grid` has on a side gets the positions at its relative places."""
    places = torch.arange(count) / count
    rows = torch.bucketize(places, torch.arange(1, grid) / grid, right=True)
    return (rows[:, None] * grid + rows).flatten()


def shuffled(x: Tensor, scale: int) -> Tensor:
    """Squares of scale x scale patches joined into one row: [B, n², E] → [B, (n / scale)², scale² E]"""
    batch, patches, width = x.shape
    side = round(patches**0.5) // scale
    squares = x.view(batch, side, scale, side, scale, width).transpose(2, 3)
    return squares.reshape(batch, side * side, scale * scale * width)


def _block(weights: Weights, sizes: TowerSizes, table: OperatorTable | None) -> VisionBlock:
    width = sizes.width
    biases = [weights.take(f"self_attn.{name}_proj.bias", width) for name in "qkv"]
    first, *others = (weights.linear(f"self_attn.{name}_proj", width, width) for name in "qkv")
    fc1, fc1_bias = weights.linear("mlp.fc1", sizes.inner, width), weights.take("mlp.fc1.bias", sizes.inner)
    return VisionBlock(
        norm1=norm_weights(weights, "layer_norm1", width),
        qkv=bound(first.cat(others), torch.cat(biases), table),
        proj=projection(weights, "self_attn.out_proj", width, width, table=table),
        norm2=norm_weights(weights, "layer_norm2", width),
        fc1=linear_gelu(fc1, fc1_bias, "tanh", plain=plain_linears(table, fc1)),
        fc2=projection(weights, "mlp.fc2", width, sizes.inner, table=table),
    )


def projection(
    weights: Weights, name: str, outputs: int, inputs: int, *, bias: bool = True, table: OperatorTable | None = None
) -> Linear:
    """A projection of the tower or after it."""
    weight = weights.linear(name, outputs, inputs)
    return bound(weight, weights.take(f"{name}.bias", outputs) if bias else None, table)


def bound(weight: Weight, bias: Tensor | None, table: OperatorTable | None = None) -> Linear:
    """A weight as it is on its device; only decoders follow a service's conversion of weights.

    table: of the service; read for whether weights may be reordered.
    """
    if plain_linears(table, weight):
        return Gemm(weight, bias)
    key = OperatorKey(op_name="linear", model_name="vit", stage="prefill")
    return bind_linear_stage(built_in_table(), key, weight, bias)
