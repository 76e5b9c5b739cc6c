"""ACT as a policy that answers in one pass: cameras and state in, a chunk of actions out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import PROMPT, CameraNeed, Observation, PolicyInputs, Stage, StageProgram
from edgeflow.engine.policy import Footprint, Placement, Vectors
from edgeflow.kernels.kv.layout import uploaded
from edgeflow.models.checkpoint import Weights, tensor_shapes
from edgeflow.policies.act.config import ACTCheckpoint, ACTConfig
from edgeflow.policies.act.network import ACTNetwork
from edgeflow.policies.act.resnet import map_side
from edgeflow.policies.lerobot import STATE, UNNORM_KEYS, Affine, ImageInput, action_schema
from edgeflow.policies.tensors import image_of, unit_range, vector_of
from edgeflow_client.types import ActionSchema, StateSpec

PREFIX = "model."
TRAINING = ("model.vae_encoder",)
"""Tensors that only training needs."""
CPU = torch.device("cpu")
LIVE = 3
"""Feature maps that are in memory at once: the input, output and shortcut of a block."""


@dataclass(frozen=True, slots=True)
class ACTFrame:
    """Normalised inputs of one frame in float32, in the order of the network: images [3, h, w], vectors [n]."""

    images: tuple[Tensor, ...]
    vectors: tuple[Tensor, ...]


class InputNormaliser:
    """Normalises tensors of one input as the checkpoint's processor does; None leaves them as they are."""

    def __init__(self, affine: Affine | None, device: torch.device) -> None:
        self._affine = affine
        if affine is not None:
            self._centre, self._divisor = (
                torch.from_numpy(each).to(device) for each in (affine.centre, affine.divisor)
            )

    def __call__(self, x: Tensor) -> Tensor:
        """[..., n] or [..., 3, h, w] float32, which is overwritten, in the units of the dataset → normalised"""
        if self._affine is None:
            return x
        x = x.sub_(self._centre).div_(self._divisor)
        return x.sub_(self._affine.origin) if self._affine.origin else x


def inputs_of(checkpoint: ACTCheckpoint) -> PolicyInputs:
    """The observed names of the inputs, which are not those of the network where the checkpoint renames them."""
    config, sources, names = checkpoint.config, checkpoint.processors.sources, tuple(checkpoint.settings.state_names)
    cameras = [CameraNeed(name=sources[each.name], width=each.width, height=each.height) for each in config.cameras]
    vectors = [
        StateSpec(name=sources[name], size=size, elements=names if name == STATE else ())
        for name, size in config.vectors.items()
    ]
    return PolicyInputs(cameras=tuple(cameras), state=tuple(vectors))


class ACTPolicy:
    """A one-pass policy; frames of several robots are a batch.

    place: where frames are normalised, the host or the network's device.
    """

    unnorm_keys = UNNORM_KEYS
    fixed_rows = 1
    rtc = None
    unusual_states = 0

    def __init__(self, checkpoint: ACTCheckpoint, network: ACTNetwork, *, place: torch.device) -> None:
        processors, config = checkpoint.processors, checkpoint.config
        self.config = config
        self.inputs = inputs_of(checkpoint)
        self.device, self.dtype = network.device, network.dtype
        self._network = network
        self._settings = checkpoint.settings
        self._sources = processors.sources
        self._action = processors.action
        self._place = place
        self._normalise = {name: InputNormaliser(processors.inputs.get(name), place) for name in config.inputs}
        self._positions = network.positions([(map_side(each.height), map_side(each.width)) for each in config.cameras])

    def program(self, unnorm_key: str | None = None) -> StageProgram:  # noqa: ARG002 - there is one dataset
        """A single pass."""
        return StageProgram((Stage(rows=PROMPT),))

    def text_rows(self, instruction: str, state: Vectors | None = None) -> int:  # noqa: ARG002
        """0: the policy does not read the instruction."""
        return 0

    def prepare(self, observation: Observation) -> ACTFrame:
        """The normalised inputs of a frame; InvalidArgument as in image_of and vector_of."""
        images = [self._image(each, observation) for each in self.config.cameras]
        vectors = [self._vector(name, size, observation) for name, size in self.config.vectors.items()]
        return ACTFrame(tuple(images), tuple(vectors))

    def prompt_tokens(self, frame: ACTFrame) -> int:  # noqa: ARG002
        """0: the policy does not read the instruction."""
        return 0

    def batch(self, frames: Sequence[ACTFrame], tokens: int) -> list[Tensor]:  # noqa: ARG002
        """B frames → [B, 3, h, w] of each camera, then [B, n] of each vector."""
        return [torch.stack(each) for each in zip(*(frame.images + frame.vectors for frame in frames), strict=True)]

    def run(self, batch: Sequence[Tensor], *, on_host: bool) -> Tensor:  # noqa: ARG002 - nothing is read there
        """A batch → normalised actions [B, horizon, D] float32 on the device"""
        cameras = len(self.config.cameras)
        actions = self._network(batch[:cameras], batch[cameras:], self._positions)
        return actions[:, : self.config.horizon].float()

    def actions(
        self,
        values: NDArray[np.float64],
        unnorm_key: str | None = None,  # noqa: ARG002 - there is one dataset
    ) -> NDArray[np.float64]:
        """[horizon, D] of `run` → [horizon, D] in the units of the training's data"""
        return values if self._action is None else self._action.restored(values)

    def action_schema(self, unnorm_key: str | None = None) -> ActionSchema:
        """Names and rate as configured; the checkpoint states neither units nor limits."""
        config, settings = self.config, self._settings
        rate_hz, names = settings.control_rate_hz, settings.action_names
        return action_schema(unnorm_key, config.action, config.horizon, rate_hz, names=names)

    def _image(self, camera: ImageInput, observation: Observation) -> Tensor:
        """[3, h, w] on the place of normalisation."""
        image = image_of(observation, self._sources[camera.name], camera.width, camera.height)
        return self._normalise[camera.name](unit_range(image, self._place))

    def _vector(self, name: str, size: int, observation: Observation) -> Tensor:
        """[n] on the place of normalisation."""
        vector = vector_of(observation.state, self._sources[name], size)
        return self._normalise[name](uploaded(torch.tensor(vector, dtype=torch.float32), self._place))


class PublishedACT:
    """A checkpoint directory; CheckpointError for weights that are missing or truncated."""

    unnorm_keys = UNNORM_KEYS

    def __init__(self, directory: Path, checkpoint: ACTCheckpoint) -> None:
        self._directory = directory
        self._checkpoint = checkpoint
        self.inputs = inputs_of(checkpoint)
        self._shapes = tensor_shapes(directory)

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
            frame_bytes=frame_numbers(self._checkpoint.config, stem) * dtype.itemsize,
            graphs=True,
        )

    def load(self, placement: Placement) -> ACTPolicy:
        """Read the weights; CheckpointError says what is wrong with them."""
        checkpoint = self._checkpoint
        network = read_network(self._directory, checkpoint.config, placement.dtype, placement.device)
        place = placement.device if placement.preprocess_on_device else CPU
        return ACTPolicy(checkpoint, network, place=place)


def read_network(directory: Path, config: ACTConfig, dtype: torch.dtype, device: torch.device) -> ACTNetwork:
    """The network of a checkpoint. Weights are read in float32, in which those of the normalisations are prepared."""
    return ACTNetwork(config, Weights(directory, torch.float32, device).under(PREFIX), dtype)


def frame_numbers(config: ACTConfig, stem: int) -> int:
    """Activations of one frame. stem: channels of the backbone's first feature map, which is the largest."""
    pixels = [each.height * each.width for each in config.cameras]
    tokens = 3 + sum(map_side(each.height) * map_side(each.width) for each in config.cameras)
    maps = LIVE * stem * max(pixels, default=0) // 4
    return 3 * sum(pixels) + maps + (tokens + config.chunk) * (8 * config.width + config.mlp)
