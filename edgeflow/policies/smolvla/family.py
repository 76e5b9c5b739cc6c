"""SmolVLA, LeRobot's small flow-matching policy, in the registry of policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeflow.policies.flow.family import flow_family
from edgeflow.policies.smolvla.config import FOLDERS, SmolVLAConfig, load_config, read_checkpoint

if TYPE_CHECKING:
    from edgeflow.policies.flow.policy import FlowArchitecture
    from edgeflow.policies.smolvla.network import SmolVLANetwork


def _architecture(config: SmolVLAConfig) -> FlowArchitecture[SmolVLANetwork]:
    from edgeflow.policies.smolvla.network import architecture_of

    return architecture_of(config)


SMOLVLA = flow_family(
    "smolvla",
    read_checkpoint,
    load_config,
    _architecture,
    folders=FOLDERS,
    example={
        "model": "OWNER/NAME",
        "policy": {"control_rate_hz": 30.0, "absent_cameras": [], "rtc": {}},
        "cameras": {"observation.images.camera1": "front", "observation.images.camera2": "wrist"},
    },
)
