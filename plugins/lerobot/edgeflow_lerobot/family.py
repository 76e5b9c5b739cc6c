"""Any LeRobot checkpoint without its weights: inputs, actions, pipelines and settings; its family in the registry.

Published source: LeRobot's configs/policies.py and configs/train.py. Torch-free: control reads it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeflow.contract import MOST_HISTORY
from edgeflow.policies.family import (
    ONE_PASS_MODES,
    CheckpointFiles,
    Family,
    Settings,
    check_files,
    reject_crop,
)
from edgeflow.policies.flow.config import EMPTY
from edgeflow.policies.lerobot import (
    ACTION,
    CONFIG_FILE,
    POSTPROCESSOR,
    PREPROCESSOR,
    STATE,
    TYPES,
    ImageInput,
    Pipeline,
    read_cameras,
    read_pipeline,
    sources_of,
)
from edgeflow.policies.settings import StatedSettings, check_stated, validated
from edgeflow.text.checkpoint_json import Fields, read_json
from edgeflow_client.errors import CheckpointError
from edgeflow_client.types import check_chunk

if TYPE_CHECKING:
    from edgeflow.engine.policy import LoadOptions, Published

NAME = "lerobot"
WEIGHTS = "model.safetensors"
DATASET_FILE, TRAINING_FILE = "meta/info.json", "train_config.json"
"""Files with the rate of the data: the data set's, which may be copied beside the checkpoint, and the training's."""
VECTORS = ("STATE", "ENV")
HORIZONS = ("n_action_steps", "action_chunk_size", "chunk_size")
"""Keys of the number of actions of an answer; the first that a checkpoint has counts."""
MISSING = {
    "control_rate_hz": "the checkpoint does not state it: add the rate of the training's data, "
    'such as "policy": {"control_rate_hz": 30}, or copy the data set\'s meta/info.json beside the checkpoint'
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotCheckpoint:
    """A checkpoint without its weights."""

    kind: str
    """LeRobot's `type`."""
    cameras: tuple[ImageInput, ...]
    """The image inputs, in the order of config.json."""
    vectors: Mapping[str, int]
    """Sizes of the vector inputs by name."""
    sources: Mapping[str, str]
    """The observed name of each input, which differs where the preprocessor renames it."""
    action: int
    """D, numbers of an action."""
    horizon: int | None
    """Actions of an answer at most; None: all that are predicted."""
    observations: int
    """Observations that an answer needs, the newest included."""
    before: Pipeline
    after: Pipeline
    settings: StatedSettings


def read_checkpoint(directory: Path, settings: Settings) -> LeRobotCheckpoint:
    """Read and check all files but the weights; CheckpointError or ConfigError names what is wrong."""
    values = Fields(CONFIG_FILE, read_json(directory / CONFIG_FILE))
    kind = values.text("type")
    values.only("use_peft", False)
    inputs = values.object("input_features")
    cameras = tuple(each for each in read_cameras(inputs) if not each.name.startswith(EMPTY))
    features = {name: inputs.object(name) for name in inputs}
    vectors = {
        name: each.shape("shape", 1)[0] for name, each in features.items() if each.choice("type", TYPES) in VECTORS
    }
    if not cameras and not vectors:
        raise CheckpointError(f"{inputs.where} has neither images nor vectors; served: at least one of them")
    action = values.object("output_features").object(ACTION).shape("shape", 1)[0]
    observations = values.size("n_obs_steps")
    if observations > MOST_HISTORY:
        raise CheckpointError(f"{values.name('n_obs_steps')} is {observations}; served: at most {MOST_HISTORY}")
    before, after = read_pipeline(directory, PREPROCESSOR), read_pipeline(directory, POSTPROCESSOR)
    check_files(directory, WEIGHTS)
    given = {**_from_files(directory, action, vectors.get(STATE, 0)), **settings}
    read = validated(NAME, StatedSettings, given, MISSING)
    check_stated(read, action=action, state=vectors.get(STATE, 0))
    return LeRobotCheckpoint(
        kind=kind,
        cameras=cameras,
        vectors=vectors,
        sources=sources_of(before, (*vectors, *(camera.name for camera in cameras))),
        action=action,
        horizon=_horizon(values, action),
        observations=observations,
        before=before,
        after=after,
        settings=read,
    )


def _horizon(values: Fields, action: int) -> int | None:
    """None where actions are ensembled over time, for which n_action_steps has to be 1: robots do that themselves."""
    key = next((each for each in HORIZONS if each in values), None)
    if key is None or "temporal_ensemble_coeff" in values:
        return None
    horizon = values.size(key)
    try:
        check_chunk(horizon, action)
    except ValueError as error:
        raise CheckpointError(f"{values.name(key)} is {horizon}: {error}") from None
    return horizon


def _from_files(directory: Path, action: int, state: int) -> dict[str, Any]:
    """Settings that files beside the checkpoint state: the rate of the data, and the names of its numbers."""
    dataset = read_json(directory / DATASET_FILE, required=False)
    simulation = read_json(directory / TRAINING_FILE, required=False).get("env")
    rates = [each.get("fps") for each in (dataset, simulation) if isinstance(each, Mapping)]
    features = dataset.get("features")
    found = {
        "control_rate_hz": next((float(each) for each in rates if isinstance(each, int | float)), None),
        "action_names": _names(features, ACTION, action),
        "state_names": _names(features, STATE, state),
    }
    return {name: value for name, value in found.items() if value}


def _names(features: object, name: str, size: int) -> list[str]:
    """The names of a feature's numbers, a list or an object of lists; none where they are not one per number."""
    feature = features.get(name) if isinstance(features, Mapping) else None
    names = feature.get("names") if isinstance(feature, Mapping) else None
    if isinstance(names, Mapping):
        names = [each for group in names.values() if isinstance(group, list) for each in group]
    texts = names if isinstance(names, list) and all(isinstance(each, str) for each in names) else []
    return texts if len(set(texts)) == size else []


def _detect(files: CheckpointFiles) -> bool:
    return isinstance(files.config.get("type"), str) and isinstance(files.config.get("input_features"), Mapping)


def _load(directory: Path, settings: Settings, options: LoadOptions) -> Published:
    from edgeflow_lerobot.policy import PublishedLeRobot

    checkpoint = read_checkpoint(directory, settings)
    reject_crop(NAME, options)
    return PublishedLeRobot(directory, checkpoint)


LEROBOT = Family(name=NAME, modes=ONE_PASS_MODES, detect=_detect, check=read_checkpoint, load=_load)
