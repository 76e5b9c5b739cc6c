"""SmolVLA, LeRobot's small flow-matching policy, in the registry of policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgeflow.policies.flow.family import flow_family
from edgeflow.policies.smolvla.config import SmolVLAConfig, load_config, read_checkpoint

if TYPE_CHECKING:
    from edgeflow.kernels.table.model_shape import ModelShape
    from edgeflow.policies.flow.published import FlowArchitecture
    from edgeflow.policies.smolvla.network import SmolVLANetwork


def _architecture(config: SmolVLAConfig) -> FlowArchitecture[SmolVLANetwork]:
    from edgeflow.policies.smolvla.network import architecture_of

    return architecture_of(config)


def _shape(directory: Path, rows: int) -> ModelShape:
    from edgeflow.policies.smolvla.network import shape_of

    return shape_of(load_config(directory), directory, rows)


SMOLVLA = flow_family("smolvla", read_checkpoint, _architecture, _shape)
