"""What models in exported graphs have in common, whatever runs them."""

from __future__ import annotations

import torch

from edgeflow.engine.policy import Placement
from edgeflow.errors import ConfigError


def check_placement(placement: Placement) -> None:
    """ConfigError for a device or a dtype that graphs do not have: they take and give float32 on the host."""
    if placement.device.type != "cpu":
        raise ConfigError(
            f"device: {placement.device.type}; an exported artifact is fed on the host: use cpu, and "
            "artifact.providers for an accelerator"
        )
    if placement.dtype != torch.float32:
        name = str(placement.dtype).removeprefix("torch.")
        raise ConfigError(
            f"dtype: {name}; an exported artifact takes and gives float32: use auto or float32; the precision of its "
            "graphs is chosen when it is exported"
        )
