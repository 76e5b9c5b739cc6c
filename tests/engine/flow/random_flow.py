"""Tiny SmolVLA, π0 and π0.5 of random weights, as an engine takes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeflow.contract import CameraNeed, Observation, PolicyInputs
from edgeflow.engine.flow.frames import FlowFrame, RTCSettings
from edgeflow.engine.policy import Placement, Vectors
from edgeflow.lab.gpu.subjects.random_flow import CAMERAS, TINY, FlowShape
from edgeflow.lab.verify.policies.flow.recorded_runs import NetworkAlone
from edgeflow_client.types import ActionSchema


class RandomFlowPolicy(NetworkAlone):
    """Its frames are made up, whatever is seen."""

    shape: FlowShape
    unusual_states = 0
    __setattr__ = object.__setattr__

    @property
    def inputs(self) -> PolicyInputs:
        names = ("top", "left", "right")[:CAMERAS]
        return PolicyInputs(cameras=tuple(CameraNeed(name=name, width=4, height=4) for name in names), state=())

    def text_rows(self, instruction: str, state: Vectors | None = None) -> int:
        return self.shape.text

    def prepare(self, observation: Observation) -> FlowFrame:
        return self.shape.frames(1)[0]

    def actions(self, values: NDArray[np.float64], unnorm_key: str | None = None) -> NDArray[np.float64]:
        return values

    def normalised(self, actions: NDArray[np.float64]) -> NDArray[np.float64]:
        return actions

    def action_schema(self, unnorm_key: str | None = None) -> ActionSchema:
        count = self.sizes.dims
        names, bounds = tuple(f"a{index}" for index in range(count)), {"low": (-9.0,) * count, "high": (9.0,) * count}
        parts = {"units": ("1",) * count, "relative": (False,) * count, "horizon": self.sizes.horizon}
        return ActionSchema(names=names, step_ms=20.0, **bounds, **parts)


def random_flow(name: str, placement: Placement) -> RandomFlowPolicy:
    """name: of a shape of the GPU suite."""
    shape = next(each for each in TINY if each.name == name)
    flow = shape.config.flow
    policy = RandomFlowPolicy(
        sizes=shape.sizes,
        network=shape.network(placement),
        fixed_rows=shape.prefix - shape.text,
        frame_shape=((CAMERAS, 3, flow.side, flow.side), flow.state_dims),
        rtc=RTCSettings(),
    )
    policy.shape = shape
    return policy
