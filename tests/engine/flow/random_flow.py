"""Tiny SmolVLA, π0 and π0.5 of random weights, as an engine takes them."""

from __future__ import annotations

from edgeflow.engine.flow.frames import RTCSettings
from edgeflow.engine.policy import Placement
from edgeflow.lab.gpu.subjects.random_flow import CAMERAS, TINY
from edgeflow.lab.verify.policies.flow.recorded_runs import NetworkAlone


def random_flow(name: str, placement: Placement) -> NetworkAlone:
    """name: of a shape of the GPU suite."""
    shape = next(each for each in TINY if each.name == name)
    flow = shape.config.flow
    return NetworkAlone(
        sizes=shape.sizes,
        network=shape.network(placement),
        fixed_rows=shape.prefix - shape.text,
        frame_shape=((CAMERAS, 3, flow.side, flow.side), flow.state_dims),
        rtc=RTCSettings(),
    )
