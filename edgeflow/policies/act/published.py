"""An ACT checkpoint whose configuration, pipelines and statistics have been read, and whose weights have not."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from edgeflow.engine.policy import Footprint, Placement
from edgeflow.models.checkpoint import Weights, tensor_shapes
from edgeflow.policies.act.checkpoint import ACTCheckpoint
from edgeflow.policies.act.config import ACTConfig
from edgeflow.policies.act.network import ACTNetwork
from edgeflow.policies.act.policy import UNNORM_KEYS, ACTPolicy
from edgeflow.policies.act.resnet import map_side

PREFIX = "model."
TRAINING = ("model.vae_encoder",)
"""Tensors that only training needs."""
CPU = torch.device("cpu")
LIVE = 3
"""Feature maps that are in memory at once: the input, output and shortcut of a block."""


class PublishedACT:
    """A checkpoint directory; CheckpointError for weights that are missing or truncated."""

    def __init__(self, directory: Path, checkpoint: ACTCheckpoint) -> None:
        self._directory = directory
        self._checkpoint = checkpoint
        self._config = checkpoint.config
        self._shapes = tensor_shapes(directory)

    @property
    def unnorm_keys(self) -> tuple[str, ...]:
        return UNNORM_KEYS

    def footprint(self, dtype: torch.dtype) -> Footprint:
        """The memory of the weights, and of one frame's activations."""
        used = [shape for name, shape in self._shapes.items() if not name.startswith(TRAINING)]
        stem = self._shapes.get("model.backbone.conv1.weight", (0,))[0]
        return Footprint(
            decoder=0,
            other=sum(map(math.prod, used)),
            slots=0,
            positions=0,
            row_bytes=0,
            frame_bytes=frame_numbers(self._config, stem) * dtype.itemsize,
        )

    def load(self, placement: Placement) -> ACTPolicy:
        """Read the weights; CheckpointError says what is wrong with them."""
        network = read_network(self._directory, self._config, placement.dtype, placement.device)
        place = placement.device if placement.preprocess_on_device else CPU
        checkpoint = self._checkpoint
        return ACTPolicy(self._config, checkpoint.processors, network, checkpoint.settings, place=place)


def read_network(directory: Path, config: ACTConfig, dtype: torch.dtype, device: torch.device) -> ACTNetwork:
    """The network of a checkpoint. Weights are read in float32, in which those of the normalisations are prepared."""
    return ACTNetwork(config, Weights(directory, torch.float32, device).under(PREFIX), dtype)


def frame_numbers(config: ACTConfig, stem: int) -> int:
    """Activations of one frame. stem: channels of the backbone's first feature map, which is the largest."""
    pixels = [each.height * each.width for each in config.cameras]
    tokens = 3 + sum(map_side(each.height) * map_side(each.width) for each in config.cameras)
    maps = LIVE * stem * max(pixels, default=0) // 4
    return 3 * sum(pixels) + maps + (tokens + config.chunk) * (8 * config.width + config.mlp)
