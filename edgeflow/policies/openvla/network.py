"""OpenVLA's vision: the towers, and the projector from their features to image tokens.

Published source: OpenVLA's prismatic/extern/hf/modeling_prismatic.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.linear import Linear
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.models.checkpoint import Weights
from edgeflow.models.vit import VisionTower, gemm
from edgeflow.policies.openvla.config import OpenVLAConfig
from edgeflow_client.errors import CheckpointError

First = TypeVar("First")


class SideStream:
    """Two independent programs at once: on CUDA the second runs on a separate stream, elsewhere they run in order.

    Results do not depend on it. The side stream forks from the caller's stream and joins it again by events, so that a
    graph captured on the caller's stream holds both branches. Memory: what the second program allocates belongs to the
    side stream, whose every use first waits for the caller's stream; so memory is reused only after all its readers.
    The result is also marked as read by the caller's stream, which may be another one at the next call.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def both(self, here: Callable[[], First], aside: Callable[[], Tensor]) -> tuple[First, Tensor]:
        """The results of both programs, ordered before whatever the caller enqueues next."""
        if self._stream is None:
            return here(), aside()
        caller = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream):
            second = aside()
        first = here()
        caller.wait_stream(self._stream)
        if not torch.cuda.is_current_stream_capturing():  # a graph's memory pool is its own
            second.record_stream(caller)
        return first, second


_TOWERS = ("vision_backbone.featurizer.", "vision_backbone.fused_featurizer.")


class OpenVLAVision:
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
