"""OpenVLA's vision: the towers, and the projector from their features to image tokens.

Published source: OpenVLA's prismatic/extern/hf/modeling_prismatic.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.linear import Linear
from edgeflow.kernels.side_stream import SideStream
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.models.checkpoint import Weights
from edgeflow.models.vit import VisionTower, gemm
from edgeflow.policies.openvla.config import OpenVLAConfig
from edgeflow_client.errors import CheckpointError

_TOWERS = ("vision_backbone.featurizer.", "vision_backbone.fused_featurizer.")


class Vision:
    """One or two towers without their last block, and a projector of two or three layers.

    image_tokens: projected patches of an image. channels: of its pixel values, three per tower.
    """

    def __init__(self, config: OpenVLAConfig, weights: Weights, table: OperatorTable | None) -> None:
        self.towers = [
            _load_tower(weights.under(prefix), heads, config.image.side, table)
            for prefix, heads in zip(_TOWERS, config.tower_heads, strict=False)
        ]
        self.image_tokens = self.towers[0].patches
        self.channels = 3 * len(self.towers)
        vision = sum(tower.width for tower in self.towers)
        fused = len(self.towers) > 1
        self._projector = _load_projector(weights.under("projector."), vision, config.text.hidden_size, fused=fused)
        self._dtype = weights.dtype
        self._side = SideStream(weights.device)

    def features(self, pixel_values: Tensor) -> list[Tensor]:
        """[B, channels, side, side] → [B, patches, E_tower] per tower; on CUDA both towers run at once."""
        pixels = pixel_values.to(self._dtype)
        images = torch.split(pixels, 3, dim=1)
        if len(self.towers) == 1:
            return [self.towers[0].forward(images[0])]
        first, second = (partial(tower.forward, image) for tower, image in zip(self.towers, images, strict=True))
        return list(self._side.both(first, second))

    def project(self, features: Sequence[Tensor]) -> Tensor:
        """Tower features → image tokens [B, patches, E]"""
        x = torch.cat(list(features), dim=-1)
        for index, linear in enumerate(self._projector):
            x = linear(F.gelu(x) if index else x)
        return x


def _load_tower(weights: Weights, heads: int, side: int, table: OperatorTable | None) -> VisionTower:
    """A tower without its last block: the features are the output of the second-to-last one."""
    depth = len({name.split(".")[1] for name in weights if name.startswith("blocks.")})
    if depth < 2:
        raise CheckpointError(f"a vision tower has {depth} blocks: one with a second-to-last block is needed")
    return VisionTower(weights, heads=heads, blocks=depth - 1, image_side=side, table=table)


def _load_projector(weights: Weights, vision: int, hidden: int, *, fused: bool) -> list[Linear]:
    """Two towers: vision → 4 vision → hidden → hidden. One: vision → hidden → hidden."""
    widths = [vision, 4 * vision, hidden, hidden] if fused else [vision, hidden, hidden]
    return [gemm(weights, f"fc{index}", after, before) for index, (before, after) in enumerate(pairwise(widths), 1)]
