"""Checkpoints in LeRobot's layout: features of config.json, pipelines of processors, and their statistics. Torch-free.

Published source: LeRobot's processor/pipeline.py and normalize_processor.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from edgeflow.text.checkpoint_json import Fields, read_json
from edgeflow_client.errors import CheckpointError
from edgeflow_client.files import open_regular
from edgeflow_client.types import ActionSchema

CONFIG_FILE = "config.json"
STATE, ENVIRONMENT, ACTION = "observation.state", "observation.environment_state", "action"
UNNORM_KEYS = (ACTION,)
"""A checkpoint has the statistics of one dataset."""
TYPES = ("VISUAL", "STATE", "ENV", "ACTION", "REWARD", "LANGUAGE")
LONGEST = 4096  # pixels of a side
Floats = NDArray[np.float32]
RANGES = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}
"""Statistics that become -1 and 1, by kind of normalisation."""
IDENTITY, MEAN_STD = "IDENTITY", "MEAN_STD"
KINDS = (IDENTITY, MEAN_STD, *RANGES)
DTYPES = ("F32", "F64", "F16")
SHOWN = 120  # characters of names in messages
PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
RENAME, BATCH, DEVICE = "rename_observations_processor", "to_batch_processor", "device_processor"
NORMALISE, UNNORMALISE = "normalizer_processor", "unnormalizer_processor"
RELATIVE, ABSOLUTE = "relative_actions_processor", "absolute_actions_processor"
OLDER_NAMES = {"delta_actions_processor": RELATIVE}
"""Present names of steps by those of earlier versions of LeRobot."""
EPS = 1e-8
RATE_DECISION = {"policy.control_rate_hz": "the fps of the training data, in meta/info.json of the data set"}
"""The key that no checkpoint states, and where to look (Family.decisions)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInput:
    """An image input: RGB images of height x width pixels."""

    name: str
    height: int
    width: int


def read_cameras(inputs: Fields) -> tuple[ImageInput, ...]:
    """The image inputs, in the order of the file."""
    found = []
    for name in inputs:
        feature = inputs.object(name)
        if feature.choice("type", TYPES) == "VISUAL":
            channels, height, width = feature.shape("shape", 3)
            if channels != 3:
                raise CheckpointError(f"{feature.name('shape')} has {channels} channels; served: 3")
            if max(height, width) > LONGEST:
                raise CheckpointError(
                    f"{feature.name('shape')} has {width} x {height} pixels; served: sides to {LONGEST}"
                )
            found.append(ImageInput(name=name, height=height, width=width))
    return tuple(found)


def read_vector(inputs: Fields, kind: str, name: str) -> int:
    """The size of a vector input, 0 where there is none. Networks read only those of the published names."""
    if name not in inputs:
        return 0
    feature = inputs.object(name)
    feature.choice("type", (kind,))
    return feature.shape("shape", 1)[0]


def local_folder(directory: Path, name: str) -> Path | None:
    """A folder of the checkpoint by its relative name; None where there is none. Names that lead out of it, or that no
    file system takes, are none."""
    relative = Path(name)
    if relative.is_absolute() or ".." in relative.parts:
        return None
    folder = directory / relative
    try:
        return folder if folder.is_dir() else None
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """Normalisation: (x - centre) / divisor - origin, and back: (y + origin) * factor + centre.

    The arrays have the shape of a vector, or [3, 1, 1] for images. divisor and factor differ by the published epsilon.
    """

    centre: Floats
    divisor: Floats
    factor: Floats
    origin: float

    @classmethod
    def of(cls, kind: str, statistics: Sequence[Floats], eps: float) -> Affine:
        """statistics: mean and standard deviation, or the values that become -1 and 1. eps: keeps divisors from 0."""
        first, second = statistics
        if kind == MEAN_STD:
            return cls(centre=first, divisor=(second + eps).astype(np.float32), factor=second, origin=0.0)
        span = second - first
        half = (np.where(span == 0, eps, span) / 2).astype(np.float32)
        return cls(centre=first, divisor=half, factor=half, origin=1.0)

    def normalised(self, values: Floats) -> Floats:
        """Values [..., n] in the units of the statistics → normalised"""
        normalised: Floats = (values - self.centre) / self.divisor - np.float32(self.origin)
        return normalised

    def restored(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Normalised values [..., D] → in the units of the statistics."""
        restored: NDArray[np.float64] = (values + self.origin) * self.factor.astype(np.float64) + self.centre
        return restored

    def unrestored(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The inverse of `restored`: values [..., D] in the units of the statistics → normalised, NaN or infinite where
        the factor is 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            normalised: NDArray[np.float64] = (values - self.centre) / self.factor.astype(np.float64) - self.origin
        return normalised


def names_of(kind: str) -> tuple[str, str]:
    """The two statistics that a kind of normalisation needs."""
    return ("mean", "std") if kind == MEAN_STD else RANGES[kind]


def read_statistics(path: Path, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
    """Statistics by name, each of the wanted shape; CheckpointError names the first that has another one.

    Shapes are compared with the file's header before anything is read. [3, 1, 1] may be stored as [3].
    """
    if not path.is_file():
        raise CheckpointError(f"{path.parent} has no {path.name} with its statistics: copy the checkpoint again")
    try:
        open_regular(path).close()
        with safe_open(path, framework="numpy") as file:
            stored = set(file.keys())
            return {name: _read(file, name, shape, path, stored) for name, shape in wanted.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or not safetensors: copy the checkpoint again") from error


def _data_sets(name: str, stored: set[str]) -> list[str]:
    """The data sets for which a file has statistics of this name, as `so100.action.mean` or
    `so100_buffer_action.mean`.
    """
    wanted = name.replace(".", "_")
    spelled = {each: each.replace("_buffer_", ".").replace(".", "_") for each in stored}
    found = {each[: len(text) - len(wanted) - 1] for each, text in spelled.items() if text.endswith(f"_{wanted}")}
    return sorted(found - {""})


def _read(file: Any, name: str, wanted: tuple[int, ...], path: Path, stored: set[str]) -> Floats:
    if name not in stored:
        others = _data_sets(name, stored)
        if others:
            raise CheckpointError(
                f"{path.name} has {name} for each of the data sets {', '.join(others)[:SHOWN]}, and none of one robot: "
                "fine-tune the policy on data of yours, or save it with the statistics of one data set"
            )
        raise CheckpointError(
            f"{path.name} lacks {name}, by which its feature is normalised: copy the checkpoint again"
        )
    part = file.get_slice(name)
    shape, dtype = tuple(part.get_shape()), part.get_dtype()
    if shape != wanted and not (len(wanted) == 3 and shape == wanted[:1]):
        raise CheckpointError(f"{path.name}: {name} has shape {list(shape)}, expected {list(wanted)}")
    if dtype not in DTYPES:
        raise CheckpointError(f"{path.name}: {name} has dtype {dtype}; served: {', '.join(DTYPES)}")
    values: Floats = np.asarray(file.get_tensor(name), np.float32).reshape(wanted)
    if not np.isfinite(values).all():
        raise CheckpointError(f"{path.name}: {name} has values that are not finite")
    return values


@dataclass(frozen=True, slots=True)
class Normalisation:
    """How a LeRobot policy's inputs and outputs are scaled."""

    sources: Mapping[str, str]
    """The name of the observation for each input of the network."""
    inputs: Mapping[str, Affine]
    """The normalisation of each input, by its name in the network; an input without one is left as it is."""
    action: Affine | None
    """The normalisation of actions; None where the network's actions are in the robot's units."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline's steps in order: name and entry of each."""

    file: str
    steps: tuple[tuple[str, Fields], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.steps)

    def one(self, name: str) -> Fields:
        """The entry of a step that must occur exactly once."""
        found = [entry for step, entry in self.steps if step == name]
        if len(found) != 1:
            raise CheckpointError(f"{self.file} has {len(found)} steps {name}; served: one")
        return found[0]

    def ordered(self, first: str, second: str) -> None:
        """Reject a pipeline with a step after one that it must precede."""
        if self.names.index(first) > self.names.index(second):
            raise CheckpointError(f"{self.one(first).where}: {first} comes after {second}; served: before it")


def read_pipeline(directory: Path, name: str, served: Sequence[str] | None = None) -> Pipeline:
    """Read a pipeline; CheckpointError for a file that is missing and for a step that is not served.

    served: names of steps; None: all that LeRobot registers, and none that a file names by its class.
    """
    if not (directory / name).is_file():
        raise CheckpointError(
            f"{directory} has no {name}: LeRobot converts checkpoints of before its processor pipelines with "
            f"`python -m lerobot.processor.migrate_policy_normalization --pretrained-path {directory} "
            "--output-dir FOLDER`; serve that folder"
        )
    entries = Fields(name, read_json(directory / name)).objects("steps")
    return Pipeline(name, tuple((_known(entry, served), entry) for entry in entries))


def read_normalisation(
    directory: Path, before: Pipeline, after: Pipeline, inputs: Mapping[str, tuple[int, ...]], action: int
) -> Normalisation:
    """Renaming and statistics of both pipelines; CheckpointError names the step or statistic at fault.

    inputs: shapes of the network's inputs; [3, 1, 1] for images. action: D.
    """
    step = before.one(NORMALISE)
    affines = _affines(directory, step, _kinds_of_inputs(step.object("config")), inputs)
    step = after.one(UNNORMALISE)  # which knows only one feature, the action, listed or not
    kinds = {ACTION: _kinds(step.object("config")).get("ACTION", IDENTITY)}
    outputs = _affines(directory, step, kinds, {ACTION: (action,)})
    if RENAME in before.names:
        before.ordered(RENAME, NORMALISE)
    return Normalisation(sources_of(before, tuple(inputs)), affines, outputs.get(ACTION))


def _known(entry: Fields, served: Sequence[str] | None) -> str:
    key = "registry_name" if "registry_name" in entry else "class"
    stated = entry.text(key)
    step = OLDER_NAMES.get(stated, stated)
    if key == "class" or (served is not None and step not in served):
        names = "steps that LeRobot registers by name" if served is None else ", ".join(served)
        raise CheckpointError(f"{entry.where}: the step {stated} is not served; served: {names}")
    if step == DEVICE:
        entry.object("config").only("float_dtype", "float32")
    if step in (RELATIVE, ABSOLUTE) and entry.object("config").flag("enabled", False):
        raise CheckpointError(f"{entry.where}: the step {stated} is enabled; served: disabled")
    return step


def sources_of(before: Pipeline, inputs: Sequence[str]) -> dict[str, str]:
    """The observed name of each input: the renaming, backwards; CheckpointError for an input of two names or none."""
    if RENAME not in before.names:
        return {name: name for name in inputs}
    entry = before.one(RENAME)
    renamed = entry.object("config").object("rename_map")
    new_names = {old: renamed.text(old) for old in renamed}
    sources = {}
    for name in inputs:
        found = [old for old, new in new_names.items() if new == name]
        if not found and name not in new_names:
            found = [name]
        if len(found) != 1:
            raise CheckpointError(f"{renamed.where}: {len(found)} names become {name}; served: one")
        sources[name] = found[0]
    return sources


def _kinds_of_inputs(config: Fields) -> dict[str, str]:
    """Kinds of normalisation by the features that the step before the network lists."""
    features, kinds = config.object("features"), _kinds(config)
    types = {name: features.object(name).choice("type", TYPES) for name in features}
    chosen = config.texts("normalize_observation_keys") if "normalize_observation_keys" in config else tuple(types)
    return {name: kinds.get(kind, IDENTITY) for name, kind in types.items() if name in chosen}


def _kinds(config: Fields) -> dict[str, str]:
    """Kinds of normalisation by type of feature."""
    mapping = config.object("norm_map")
    return {kind: mapping.choice(kind, KINDS) for kind in mapping}


def _affines(
    directory: Path, step: Fields, kinds: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Affine]:
    """The normalisation of each feature in `shapes` that has one. step: its entry; kinds: by feature."""
    state_file = step.text("state_file") if "state_file" in step else ""
    if Path(state_file).name != state_file:
        raise CheckpointError(f"{step.name('state_file')} is {state_file!r}; served: a file of the checkpoint")
    eps = step.object("config").positive("eps", EPS)
    kinds = {name: kinds[name] for name in shapes if kinds.get(name, IDENTITY) != IDENTITY}
    if not kinds:
        return {}
    names = {name: [f"{name}.{each}" for each in names_of(kind)] for name, kind in kinds.items()}
    wanted = {each: shapes[name] for name, both in names.items() for each in both}
    if not state_file:
        raise CheckpointError(
            f"{directory} has no statistics for {', '.join(kinds)}: its processor names no state_file"
        )
    found = read_statistics(directory / state_file, wanted)
    return {name: Affine.of(kind, [found[each] for each in names[name]], eps) for name, kind in kinds.items()}


def action_schema(unnorm_key: str | None, size: int, horizon: int, rate_hz: float, **stated: Any) -> ActionSchema:
    """The meaning of actions of `size` numbers; CheckpointError for another dataset. stated: fields of the schema; what
    is empty is absolute, without unit and limit.
    """
    if unnorm_key not in (None, *UNNORM_KEYS):
        raise CheckpointError(f"unnorm_key: {unnorm_key!r} is not one of {', '.join(UNNORM_KEYS)}")
    plain: dict[str, Any] = {"names": tuple(f"a{index}" for index in range(size))}
    for name, each in (("units", "1"), ("low", -math.inf), ("high", math.inf), ("relative", False)):
        plain[name] = (each,) * size
    given = {name: tuple(each) if name in plain else each for name, each in stated.items() if each}
    step_ms = 1000.0 / rate_hz if horizon > 1 else 0.0
    return ActionSchema(**plain | given, control_rate_hz=rate_hz, horizon=horizon, step_ms=step_ms)
