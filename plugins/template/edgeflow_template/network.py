"""The network: a camera and the joints in, a chunk of actions out. Put yours here."""

from __future__ import annotations

import torch
from edgeflow_template.family import TemplateConfig
from torch import Tensor, nn


class TemplateNetwork(nn.Module):
    """A convolution over patches of 16 x 16 pixels, then two layers."""

    def __init__(self, config: TemplateConfig) -> None:
        super().__init__()
        self.shape = config.horizon, config.joints
        self.patches = nn.Conv2d(3, config.width, 16, stride=16)
        self.mix = nn.Linear(config.width + config.joints, config.width)
        self.chunk = nn.Linear(config.width, config.horizon * config.joints)

    def forward(self, images: Tensor, joints: Tensor) -> Tensor:
        """images [B, 3, side, side], 0 to 1, and joints [B, joints] → [B, horizon, joints], -1 to 1"""
        seen = torch.relu(self.patches(images)).mean((2, 3))
        mixed = torch.tanh(self.mix(torch.cat([seen, joints], 1)))
        return torch.tanh(self.chunk(mixed)).unflatten(1, self.shape)
