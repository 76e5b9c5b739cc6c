"""A small policy that answers in one pass: two cameras and a state vector in, a chunk out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import PROMPT, CameraNeed, Observation, PolicyInputs, Stage, StageProgram
from edgeflow.engine.policy import Vectors
from edgeflow_client.types import ActionSchema, StateSpec

HORIZON, DIMS, STEP_MS = 4, 2, 20.0
INPUTS = PolicyInputs(
    cameras=(CameraNeed(name="top", width=10, height=8), CameraNeed(name="wrist")),
    state=(StateSpec(name="joints", size=3), StateSpec(name="gripper", size=1)),
)


@dataclass(frozen=True, slots=True)
class SmallFeatures:
    """features [4]: brightness of both cameras, the sum of the joints, the gripper. words: of the instruction."""

    features: Tensor
    words: int


class SmallPolicy:
    """Chunks are a linear function of what is seen. sizes: of the batches that were run.

    leaks: frames of a batch touch each other. rounds: how far a batch moves them.
    """

    inputs = INPUTS
    fixed_rows = 5
    rtc = None
    unusual_states = 0
    unnorm_keys = ("plain", "doubled")
    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, *, leaks: bool = False, rounds: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(0)
        self._weight = torch.randn(HORIZON * DIMS, 4, generator=generator)
        self._leaks = leaks
        self._rounds = rounds
        self.sizes: list[int] = []

    def program(self, unnorm_key: str | None = None) -> StageProgram:
        return StageProgram((Stage(rows=PROMPT),))

    def text_rows(self, instruction: str, state: Vectors | None = None) -> int:
        return len(instruction.split())

    def prepare(self, observation: Observation) -> SmallFeatures:
        bright = [np.frombuffer(each.data, np.uint8).mean() / 255 for each in observation.images.values()]
        joints, (gripper,) = observation.state["joints"], observation.state["gripper"]
        return SmallFeatures(
            torch.tensor([*bright, sum(joints), gripper]).float(), self.text_rows(observation.instruction)
        )

    def prompt_tokens(self, frame: SmallFeatures) -> int:
        return frame.words

    def batch(self, frames: Sequence[SmallFeatures], tokens: int) -> list[Tensor]:
        return [torch.stack([frame.features for frame in frames]), torch.zeros(len(frames), tokens)]

    def run(self, batch: Sequence[Tensor], *, on_host: bool) -> Tensor:
        features = batch[0]
        self.sizes.append(len(features))
        if self._leaks:
            features = features + features.sum(0)
        if len(features) > 1:
            features = features * (1 + self._rounds)
        return (features @ self._weight.T).view(len(features), HORIZON, DIMS)

    def actions(self, values: NDArray[np.float64], unnorm_key: str | None = None) -> NDArray[np.float64]:
        return values * (2.0 if unnorm_key == "doubled" else 1.0)

    def action_schema(self, unnorm_key: str | None = None) -> ActionSchema:
        return ActionSchema(
            names=("a", "b"),
            units=("1", "1"),
            low=(-100.0, -100.0),
            high=(100.0, 100.0),
            relative=(False, False),
            horizon=HORIZON,
            step_ms=STEP_MS,
        )
