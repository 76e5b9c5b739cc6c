"""π0 and π0.5, Physical Intelligence's flow-matching policies in LeRobot's layout, in the registry of policies."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from edgeflow.policies.family import Family
from edgeflow.policies.flow.family import flow_family
from edgeflow.policies.pi import config

if TYPE_CHECKING:
    from edgeflow.policies.flow.policy import FlowArchitecture
    from edgeflow.policies.pi.network import PiNetwork


def _architecture(sizes: config.PiConfig) -> FlowArchitecture[PiNetwork]:
    from edgeflow.policies.pi.network import architecture_of

    return architecture_of(sizes)


OPENPI_CAMERAS = {"observation.images.base_0_rgb": "observation/exterior_image_1_left"}


def _family(kind: str) -> Family:
    load_config = partial(config.load_config, kind=kind)
    return flow_family(
        kind,
        partial(config.read_checkpoint, kind),
        load_config,
        _architecture,
        folders=config.FOLDERS,
        example={
            "model": "OWNER/NAME",
            "policy": {"control_rate_hz": 15.0, "absent_cameras": [], "rtc": {}},
            "frontends": {"openpi": {"cameras": OPENPI_CAMERAS}},
        },
    )


PI0, PI05 = _family(config.PI0), _family(config.PI05)
