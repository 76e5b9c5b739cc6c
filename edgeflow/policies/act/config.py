"""The parts of an ACT checkpoint's config.json that its loader needs.

Published source: LeRobot's configuration_act.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeflow.policies.family import check_kind
from edgeflow.policies.lerobot.features import (
    ACTION,
    CONFIG_FILE,
    ENVIRONMENT,
    STATE,
    Camera,
    read_cameras,
    read_vector,
)
from edgeflow.text.checkpoint_json import read_json
from edgeflow.text.fields import Fields
from edgeflow_client.errors import CheckpointError
from edgeflow_client.types import check_chunk

BACKBONES = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
ACTIVATIONS = ("relu", "gelu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ACTConfig:
    """The sizes of a network. cameras: in the order in which their tokens follow each other.

    state, environment: numbers of the vectors, 0 = the policy does not take them. action: D. width: E. latent: numbers
    of the training's latent variable, which is zero when the policy is run. chunk: actions that the network computes;
    horizon: those of an answer.
    """

    cameras: tuple[Camera, ...]
    state: int
    environment: int
    action: int
    backbone: str
    width: int
    heads: int
    mlp: int
    activation: str
    encoder_layers: int
    decoder_layers: int
    pre_norm: bool
    latent: int
    chunk: int
    horizon: int

    @property
    def vectors(self) -> dict[str, int]:
        """Sizes of the vector inputs by name, in the order of their tokens."""
        return {name: size for name, size in ((STATE, self.state), (ENVIRONMENT, self.environment)) if size}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of all inputs."""
        return (*self.vectors, *(camera.name for camera in self.cameras))


def load_config(directory: Path) -> ACTConfig:
    """Read and check config.json; CheckpointError names the key and what is served."""
    config = read_json(directory / CONFIG_FILE)
    check_kind(config, "type", "act", family="act")
    values = Fields(CONFIG_FILE, config)
    values.only("n_obs_steps", 1)
    values.only("replace_final_stride_with_dilation", False)
    width, heads = values.size("dim_model", 512), values.size("n_heads", 8)
    if width % heads or width % 4:
        raise CheckpointError(
            f"{values.name('dim_model')} is {width} with n_heads {heads}; served: multiples of n_heads and of 4"
        )
    inputs = values.object("input_features")
    cameras = read_cameras(inputs)
    environment = read_vector(inputs, "ENV", ENVIRONMENT)
    if not cameras and not environment:
        raise CheckpointError(f"{inputs.where} has neither images nor {ENVIRONMENT}; served: at least one of them")
    chunk = values.size("chunk_size", 100)
    action = values.object("output_features").object(ACTION).shape("shape", 1)[0]
    return ACTConfig(
        cameras=cameras,
        state=read_vector(inputs, "STATE", STATE),
        environment=environment,
        action=action,
        backbone=values.choice("vision_backbone", BACKBONES, "resnet18"),
        width=width,
        heads=heads,
        mlp=values.size("dim_feedforward", 3200),
        activation=values.choice("feedforward_activation", ACTIVATIONS, "relu"),
        encoder_layers=values.size("n_encoder_layers", 4),
        decoder_layers=values.size("n_decoder_layers", 1),
        pre_norm=values.flag("pre_norm", False),
        latent=values.size("latent_dim", 32),
        chunk=chunk,
        horizon=_horizon(values, chunk, action),
    )


def _horizon(values: Fields, chunk: int, action: int) -> int:
    """Actions of an answer: n_action_steps, or all where they are ensembled, for which that number has to be 1."""
    key, horizon = _answer(values, chunk)
    try:
        check_chunk(horizon, action)
    except ValueError as error:
        raise CheckpointError(f"{values.name(key)} is {horizon}: {error}") from None
    return horizon


def _answer(values: Fields, chunk: int) -> tuple[str, int]:
    """The key that says how many actions an answer has, and how many these are."""
    steps = values.size("n_action_steps", chunk)
    if steps > chunk:
        raise CheckpointError(f"{values.name('n_action_steps')} is {steps}; served: at most chunk_size, {chunk}")
    if "temporal_ensemble_coeff" in values or "n_action_steps" not in values:
        return "chunk_size", chunk
    return "n_action_steps", steps
