"""The policy: observations to tensors, the network's outputs to actions, and the loading of weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from edgeflow_template.family import TemplateConfig
from edgeflow_template.network import TemplateNetwork
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from edgeflow.contract import CameraNeed, Observation, PolicyInputs, StageProgram
from edgeflow.engine.policy import Footprint, Placement, Vectors
from edgeflow.policies.tensors import image_of, unit_range, vector_of
from edgeflow_client.errors import CheckpointError
from edgeflow_client.types import ActionSchema, StateSpec

CAMERA, STATE = "wrist", "joints"
KEYS = ("action",)
LIMIT = math.pi  # of a joint, in radians


def inputs_of(config: TemplateConfig) -> PolicyInputs:
    """A camera and the joints."""
    camera = CameraNeed(name=CAMERA, width=config.side, height=config.side)
    return PolicyInputs(cameras=(camera,), state=(StateSpec(name=STATE, size=config.joints),))


class TemplatePolicy:
    """A policy that answers in one pass (OnePassPolicy in edgeflow/engine/policy.py)."""

    fixed_rows, rtc, unusual_states = 1, None, 0
    unnorm_keys = KEYS

    def __init__(self, config: TemplateConfig, network: TemplateNetwork, placement: Placement) -> None:
        self.config, self.network = config, network
        self.dtype, self.device = placement.dtype, placement.device
        self.inputs = inputs_of(config)

    def program(self, unnorm_key: str | None = None) -> StageProgram:
        return StageProgram.tokens(1)  # one pass

    def text_rows(self, instruction: str, state: Vectors | None = None) -> int:
        return 0  # it does not read the instruction

    def prepare(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """One robot's frame, on the host."""
        image = unit_range(image_of(observation, CAMERA), torch.device("cpu"))
        return image, torch.tensor(vector_of(observation.state, STATE, self.config.joints))

    def prompt_tokens(self, frame: tuple[Tensor, Tensor]) -> int:
        return 0  # as in text_rows

    def batch(self, frames: Sequence[tuple[Tensor, Tensor]], tokens: int) -> list[Tensor]:
        """Frames of several robots as tensors: images [B, 3, side, side] and joints [B, joints]."""
        return [torch.stack(each) for each in zip(*frames, strict=True)]

    def run(self, batch: Sequence[Tensor], *, on_host: bool) -> Tensor:
        """A batch on the device → [B, horizon, joints] float32, -1 to 1"""
        return self.network(*(each.to(self.dtype) for each in batch)).float()

    def actions(self, values: NDArray[np.float64], unnorm_key: str | None = None) -> NDArray[np.float64]:
        """[horizon, joints] of `run` → the same in radians"""
        return values * LIMIT

    def action_schema(self, unnorm_key: str | None = None) -> ActionSchema:
        joints, horizon, rate_hz = self.config.joints, self.config.horizon, self.config.rate_hz
        return ActionSchema(
            names=tuple(f"joint_{index}" for index in range(joints)),
            units=("rad",) * joints,
            low=(-LIMIT,) * joints,
            high=(LIMIT,) * joints,
            relative=(False,) * joints,
            control_rate_hz=rate_hz,
            horizon=horizon,
            step_ms=1000 / rate_hz if horizon > 1 else 0.0,
        )


class PublishedTemplate:
    """A checkpoint whose configuration has been read and whose weights have not."""

    unnorm_keys = KEYS

    def __init__(self, directory: Path, config: TemplateConfig) -> None:
        self.directory, self.config, self.inputs = directory, config, inputs_of(config)
        with torch.device("meta"):  # shapes without memory
            self.network = TemplateNetwork(config)

    def footprint(self, dtype: torch.dtype) -> Footprint:
        """The weights, and a frame's pixels in float32 and in the network's dtype."""
        weights = sum(each.numel() for each in self.network.parameters())
        pixels = 3 * self.config.side**2 * (torch.float32.itemsize + dtype.itemsize)
        return Footprint(decoder=0, other=weights, slots=0, positions=0, row_bytes=0, frame_bytes=pixels, graphs=True)

    def load(self, placement: Placement) -> TemplatePolicy:
        try:
            self.network.load_state_dict(load_file(self.directory / "model.safetensors"), assign=True)
        except RuntimeError as error:  # it names every tensor that is missing or has another shape
            raise CheckpointError(f"model: {self.directory}: {error}") from None
        return TemplatePolicy(self.config, self.network.to(placement.device, placement.dtype), placement)
