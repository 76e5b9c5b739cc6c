"""An ACT checkpoint without its weights: sizes, pipelines and settings.

Published source: LeRobot's configuration_act.py. Torch-free: control checks a checkpoint before a worker loads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from edgeflow.policies.family import Settings, both, check_kind
from edgeflow.policies.lerobot import (
    ACTION,
    BATCH,
    CONFIG_FILE,
    DEVICE,
    ENVIRONMENT,
    NORMALISE,
    POSTPROCESSOR,
    PREPROCESSOR,
    RENAME,
    STATE,
    UNNORMALISE,
    ImageInput,
    Normalisation,
    read_cameras,
    read_normalisation,
    read_pipeline,
    read_vector,
)
from edgeflow.policies.settings import STRICT, Name, check_length, check_unique, validated
from edgeflow.text.checkpoint_json import Fields, read_json
from edgeflow.text.weight_files import find_weights
from edgeflow_client.errors import CheckpointError
from edgeflow_client.types import check_chunk

BACKBONES = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
ACTIVATIONS = ("relu", "gelu")
Rate = Annotated[float, Field(gt=0, le=1000)]
MISSING = {
    "control_rate_hz": "the checkpoint does not state it: set the rate of the training's data, "
    "such as --set policy.control_rate_hz=50"
}
BEFORE, AFTER = (RENAME, BATCH, DEVICE, NORMALISE), (UNNORMALISE, DEVICE)
"""The steps that are served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ACTConfig:
    """The sizes of a network."""

    cameras: tuple[ImageInput, ...]
    """The image inputs, in the order of their tokens."""
    state: int
    """Numbers of the state vector; 0 = the policy takes none."""
    environment: int
    """Numbers of the environment vector; 0 = the policy takes none."""
    action: int
    """D, numbers of an action."""
    backbone: str
    width: int
    """E, the width of the transformer."""
    heads: int
    mlp: int
    activation: str
    encoder_layers: int
    decoder_layers: int
    pre_norm: bool
    latent: int
    """Numbers of the training's latent variable, which is zero when the policy is run."""
    chunk: int
    """Actions that the network computes."""
    horizon: int
    """Actions of an answer."""

    @property
    def vectors(self) -> dict[str, int]:
        """Sizes of the vector inputs by name, in the order of their tokens."""
        return {name: size for name, size in ((STATE, self.state), (ENVIRONMENT, self.environment)) if size}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of all inputs."""
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
    steps = values.size("n_action_steps", chunk)
    if steps > chunk:
        raise CheckpointError(f"{values.name('n_action_steps')} is {steps}; served: at most chunk_size, {chunk}")
    ensembled = "temporal_ensemble_coeff" in values or "n_action_steps" not in values
    key, horizon = ("chunk_size", chunk) if ensembled else ("n_action_steps", steps)
    try:
        check_chunk(horizon, action)
    except ValueError as error:
        raise CheckpointError(f"{values.name(key)} is {horizon}: {error}") from None
    return horizon


class ACTSettings(BaseModel):
    """Settings of an ACT policy that its checkpoint does not have: the control rate, and the names of its numbers."""

    model_config = STRICT

    control_rate_hz: Rate = Field(description="rate of the actions in the training data")
    action_names: list[Name] = Field([], description="names of the numbers of an action; empty = not stated")
    state_names: list[Name] = Field([], description="names of the numbers of the state vector; empty = not stated")


def read_settings(settings: Settings, config: ACTConfig) -> ACTSettings:
    """The settings for a checkpoint; ConfigError names the key, what is wrong and what to write."""
    read = validated("act", ACTSettings, settings, MISSING)
    for key, names, size, what in (
        ("action_names", read.action_names, config.action, "action"),
        ("state_names", read.state_names, config.state, STATE),
    ):
        check_length(key, names, size, what, kind="names")
        check_unique(key, names)
    return read


def load_processors(directory: Path, config: ACTConfig) -> Normalisation:
    """Read and check both pipelines and their statistics; CheckpointError names the step or statistic at fault."""
    before = read_pipeline(directory, PREPROCESSOR, BEFORE)
    after = read_pipeline(directory, POSTPROCESSOR, AFTER)
    shapes: dict[str, tuple[int, ...]] = {camera.name: (3, 1, 1) for camera in config.cameras}
    shapes |= {name: (size,) for name, size in config.vectors.items()}
    return read_normalisation(directory, before, after, shapes, config.action)


@dataclass(frozen=True, slots=True)
class ACTCheckpoint:
    """The network's sizes, the pipelines with their statistics, and the settings."""

    config: ACTConfig
    processors: Normalisation
    settings: ACTSettings


def read_checkpoint(directory: Path, settings: Settings) -> ACTCheckpoint:
    """Read and check all files but the weights, once; CheckpointError or ConfigError names what is wrong."""
    config = load_config(directory)
    (processors, _), read = both(
        lambda: both(lambda: load_processors(directory, config), lambda: find_weights(directory)),
        lambda: read_settings(settings, config),
    )
    return ACTCheckpoint(config, processors, read)
