"""The entries of config.json that LeRobot's flow-matching policies share. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.policies.lerobot.features import ACTION, STATE, Camera, read_cameras, read_vector
from edgeflow.text.fields import Fields
from edgeflow_client.errors import CheckpointError
from edgeflow_client.types import check_chunk

MOST_STEPS = 100
MOST_CAMERAS = 16
MOST_SIDE = 1024  # pixels
MOST_TOKENS = 1024
MOST_DIMS = 1024  # numbers of a padded vector
EMPTY = "observation.images.empty_camera_"
"""Cameras by which a config counts those that its training did not have; they are never observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowConfig:
    """cameras: in the order of the prefix. state: numbers of the state vector. action: D.

    side: pixels of the square images that the network takes. prompt: tokens of a text at most. chunk: H, actions that
    the network computes; horizon: those of an answer. steps: N. state_dims: S, dims: A, of the padded vectors. periods:
    shortest and longest of the embedding of flow times. trained_delay: most rows that training kept clean for real-time
    chunking, 0 = none.
    """

    cameras: tuple[Camera, ...]
    state: int
    action: int
    side: int
    prompt: int
    chunk: int
    horizon: int
    steps: int
    state_dims: int
    dims: int
    periods: tuple[float, float]
    trained_delay: int = 0


def read_flow_config(values: Fields, *, steps: str, side: str) -> FlowConfig:
    """Read and check them; CheckpointError names the key and what is served.

    steps, side: the keys of the number of steps and of the size of images.
    """
    values.only("n_obs_steps", 1)
    inputs = values.object("input_features")
    cameras = tuple(each for each in read_cameras(inputs) if not each.name.startswith(EMPTY))
    if not 1 <= len(cameras) <= MOST_CAMERAS:
        raise CheckpointError(f"{inputs.where} has {len(cameras)} cameras; served: 1 to {MOST_CAMERAS}")
    state = read_vector(inputs, "STATE", STATE)
    if not state:
        raise CheckpointError(f"{inputs.where} lacks {STATE}; served: with a state")
    action = values.object("output_features").object(ACTION).shape("shape", 1)[0]
    state_dims, dims = (at_most(values, key, 32, MOST_DIMS) for key in ("max_state_dim", "max_action_dim"))
    for what, size, most in ((STATE, state, state_dims), (ACTION, action, dims)):
        if size > most:
            raise CheckpointError(f"{values.where}: {what} has {size} numbers; served: at most its padded {most}")
    chunk = values.size("chunk_size", 50)
    horizon = values.size("n_action_steps", chunk)
    if horizon > chunk:
        raise CheckpointError(f"{values.name('n_action_steps')} is {horizon}; served: at most chunk_size, {chunk}")
    try:
        check_chunk(chunk, dims)
    except ValueError as error:
        raise CheckpointError(f"{values.name('chunk_size')} is {chunk}: {error}") from None
    return FlowConfig(
        cameras=cameras,
        state=state,
        action=action,
        side=_square(values, side),
        prompt=at_most(values, "tokenizer_max_length", 48, MOST_TOKENS),
        chunk=chunk,
        horizon=horizon,
        steps=at_most(values, steps, 10, MOST_STEPS),
        state_dims=state_dims,
        dims=dims,
        periods=_periods(values),
        trained_delay=_trained_delay(values, chunk),
    )


def at_most(values: Fields, key: str, default: int | None, most: int) -> int:
    """A size with a bound below that of all sizes."""
    size = values.size(key, default)
    if size > most:
        raise CheckpointError(f"{values.name(key)} is {size}; served: 1 to {most}")
    return size


def _square(values: Fields, key: str) -> int:
    width, height = values.shape(key, 2)
    if width != height or width > MOST_SIDE:
        raise CheckpointError(f"{values.name(key)} is {width} x {height}; served: squares of at most {MOST_SIDE}")
    return width


def _trained_delay(values: Fields, chunk: int) -> int:
    key = "rtc_training_max_delay"
    delay = values.number(key, 0) if key in values else 0.0
    if not delay.is_integer() or not 0 <= delay <= chunk:
        raise CheckpointError(f"{values.name(key)} is {delay:g}; served: whole numbers from 0 to chunk_size, {chunk}")
    return int(delay)


def _periods(values: Fields) -> tuple[float, float]:
    shortest, longest = values.positive("min_period", 4e-3), values.positive("max_period", 4.0)
    if shortest > longest:
        raise CheckpointError(f"{values.name('min_period')} is {shortest}; served: at most max_period, {longest}")
    return shortest, longest
