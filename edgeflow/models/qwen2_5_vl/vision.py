"""Qwen2.5-VL's vision tower: windowed attention over patches of an image of any size (reference: transformers).

RMSNorm eps 1e-6, SwiGLU with biases, half-split rotary embedding of (row, column), attention within windows of
8 x 8 patches but for a few blocks; then 2 x 2 patches are merged into one row of the language model.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.kv.layout import uploaded
from edgeflow.kernels.linear import Gemm, Linear
from edgeflow.kernels.row_operators import AddRmsNorm, RmsNorm
from edgeflow.kernels.table.dimensions import ROLES
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.varlen_attention import Sequences, VarlenAttention
from edgeflow.models.checkpoint import Weights
from edgeflow.models.qwen2_5_vl.config import VisionConfig
from edgeflow.models.qwen2_5_vl.preprocess import Patches

NORM_EPS = 1e-6
ROPE_THETA = 10000.0
MOST_GRIDS = 8  # image sizes whose index tensors are cached, 25 MB for the largest image


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """gate_up: E to 2F."""

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
        gate, up = (weights.linear(f"mlp.{name}_proj", inner, width) for name in ("gate", "up"))
        bias = torch.cat([weights.take(f"mlp.{name}_proj.bias", inner) for name in ("gate", "up")])
        return cls(
            norm1=weights.take("norm1.weight", width),
            qkv=_linear(weights, "attn.qkv", 3 * width, width),
            proj=_linear(weights, "attn.proj", width, width),
            norm2=weights.take("norm2.weight", width),
            gate_up=Gemm(gate.cat([up]), bias),
            down=_linear(weights, "mlp.down_proj", width, inner),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Shared by all images of one size. Rows are patches, window by window, windows of one size side by side.

    cos, sin [n, 1, 1, D/2]: rotation of each row. windows, whole: which rows attend to each other, within windows and
    in the whole image. order [n]: the patch that each row is. back [n / 4]: the merged row of each place in the image.
    """

    cos: Tensor
    sin: Tensor
    windows: Sequences
    whole: Sequences
    order: Tensor
    back: Tensor

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


class VisionTower:
    """The vision tower with its merger. weights: names below its prefix (patch_embed.proj.weight, …)."""

    def __init__(self, weights: Weights, config: VisionConfig, table: OperatorTable | None = None) -> None:
        self._config = config
        width, merged = config.hidden_size, config.hidden_size * config.spatial_merge_size**2
        kernel = (width, 3, config.temporal_patch_size, config.patch_size, config.patch_size)
        self._kernel = weights.take("patch_embed.proj.weight", *kernel).flatten(1)
        self._blocks = [_Block.of(weights.under(f"blocks.{index}."), config) for index in range(config.depth)]
        operator = partial(self._operator, table or built_in_table())
        self._attend: dict[str, VarlenAttention] = {
            role: operator("varlen_attention", role) for role in ROLES["varlen_attention"]
        }
        self._norm: RmsNorm = operator("rms_norm", "input")
        self._add_post_norm: AddRmsNorm = operator("add_rms_norm", "post_attention")
        self._add_input_norm: AddRmsNorm = operator("add_rms_norm", "input")
        self._merge_norm = weights.take("merger.ln_q.weight", width)
        self._merge = [
            _linear(weights, "merger.mlp.0", merged, merged),
            _linear(weights, "merger.mlp.2", config.out_hidden_size, merged),
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
        self, block: _Block, x: Tensor, normed: Tensor, *, norm: Tensor, grid: _Grid, role: str
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


def _linear(weights: Weights, name: str, out: int, into: int) -> Linear:
    return Gemm(weights.linear(name, out, into), weights.take(f"{name}.bias", out))
