"""The part of an OpenVLA-OFT checkpoint that OpenVLA does not have, without weights: settings, files and statistics.

Published source: openvla-oft's prismatic/vla/constants.py (settings), `save_training_checkpoint` of
vla-scripts/finetune.py (files), `normalize_proprio` of experiments/robot/openvla_utils.py and `_unnormalize_actions` of
prismatic/extern/hf/modeling_prismatic.py (statistics). Torch-free: control checks a checkpoint too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, PlainValidator

from edgeflow.policies.family import Settings, both, check_files, check_kind
from edgeflow.policies.settings import STRICT, Name, validated
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.types import MAX_HORIZON, check_chunk

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "libero": {"chunk": 8, "dims": 7, "proprio": 8, "images": 2, "bounds": "q99", "control_rate_hz": 20.0},
    "aloha": {"chunk": 25, "dims": 14, "proprio": 14, "images": 3, "bounds": "min_max", "control_rate_hz": 25.0},
    "bridge": {"chunk": 5, "dims": 7, "proprio": 7, "images": 1, "bounds": "q99", "control_rate_hz": 5.0},
}
CAMERAS = {
    1: ("full_image",),
    2: ("full_image", "wrist_image"),
    3: ("full_image", "left_wrist_image", "right_wrist_image"),
}
STATE = "state"
"""The name of the state vector."""
MOST = {"chunk": MAX_HORIZON, "dims": 256, "proprio": 256, "images": 16}
"""The largest of each size."""
LATEST = "latest"
HEAD, PROPRIO = "action_head", "proprio_projector"
UNSUPPORTED = {"vision_backbone": "FiLM", "noisy_action_projector": "the diffusion head"}
_UNUSED = {HEAD: "policy.action_head to false", PROPRIO: "policy.proprio to 0"}
_KEYS = {"q99": ("q01", "q99"), "min_max": ("min", "max")}
_EPSILON = 1e-8
Numbers = NDArray[np.float64]
REQUIRED = ("preprocessor_config.json", "tokenizer.json")


def _checked_step(value: object) -> object:
    if value is None or value == LATEST or (type(value) is int and value >= 0):
        return value
    raise ValueError('should be a training step, or "latest"')


Step = Annotated[int | Literal["latest"] | None, PlainValidator(_checked_step)]


class OFTSettings(BaseModel):
    """The settings that a policy is served with. Keys that are given override those of the preset."""

    model_config = STRICT

    preset: Literal["libero", "aloha", "bridge"] | None = Field(None, description="the keys that a robot is known by")
    chunk: int = Field(ge=1, le=MOST["chunk"], description="actions per answer")
    dims: int = Field(ge=1, le=MOST["dims"], description="numbers of an action")
    proprio: int = Field(ge=0, le=MOST["proprio"], description="numbers of the state vector; 0 = none")
    images: int = Field(ge=1, le=MOST["images"], description="cameras")
    bounds: Literal["q99", "min_max"] = Field(description="the statistics that stand for -1 and 1")
    control_rate_hz: float = Field(gt=0, le=1000, description="rate at which the actions of a chunk follow each other")
    action_head: bool | None = Field(
        None, description="regress actions with the head of action_head--*.pt; default: if there is such a file"
    )
    step: Step = Field(None, description="training step of the .pt files, of several; latest = the newest")
    dataset: str | None = Field(None, description="the entry of the statistics, of several")
    camera_names: list[Name] | None = Field(None, description="names of the cameras, in the order of the images")
    state_names: list[Name] | None = Field(None, description="names of the numbers of the state vector")
    action_names: list[Name] | None = Field(None, description="names of the numbers of an action")
    relative: list[bool] | None = Field(None, description="per number of an action: true for a displacement")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> OFTSettings:
        """The settings in force; ConfigError in one line."""
        preset = given.get("preset")
        known = PRESETS.get(preset, {}) if isinstance(preset, str) else {}
        if preset is None and given.keys().isdisjoint(PRESETS["libero"]):
            raise ConfigError(f"policy.preset: is missing; choose the robot: {', '.join(PRESETS)}")
        missing = dict.fromkeys(cls.model_fields, f"give it, or policy.preset: {', '.join(PRESETS)}")
        settings = validated("openvla_oft", cls, {**known, **given}, missing)
        settings._check_lengths()
        return settings

    def _check_lengths(self) -> None:
        lists: tuple[tuple[str, Sequence[object] | None, str, int], ...] = (
            ("camera_names", self.camera_names, "images", self.images),
            ("state_names", self.state_names, "proprio", self.proprio),
            ("action_names", self.action_names, "dims", self.dims),
            ("relative", self.relative, "dims", self.dims),
        )
        for key, entries, limit, count in lists:
            if entries is not None and len(entries) != count:
                raise ConfigError(f"policy.{key}: has {len(entries)} entries; policy.{limit} is {count}")
            if entries is not None and key != "relative" and len(set(entries)) < count:
                raise ConfigError(f"policy.{key}: a name is repeated")
        try:
            check_chunk(self.chunk, self.dims)
        except ValueError as error:
            raise ConfigError(f"policy.chunk: {error}") from None
        if self.camera_names is None and self.images not in CAMERAS:
            raise ConfigError(f"policy.camera_names: is missing; {self.images} cameras have no customary names")

    @property
    def cameras(self) -> tuple[str, ...]:
        """The names of the cameras, in the order of the images."""
        return CAMERAS[self.images] if self.camera_names is None else tuple(self.camera_names)


@dataclass(frozen=True, slots=True)
class ExtraFiles:
    """Files of an OpenVLA-OFT checkpoint besides its language model."""

    head: Path | None
    """The action head; None for a policy of tokens."""
    proprio: Path | None
    """The projection of the state; None for a policy without state."""


def find_files(directory: Path, settings: OFTSettings) -> ExtraFiles:
    """The .pt files that the settings call for; CheckpointError or ConfigError where one is missing, has another name
    than the original gives it, or cannot be chosen."""
    for stem, name in UNSUPPORTED.items():
        found = min(directory.glob(f"{stem}*.pt"), default=None)
        if found is not None:
            raise CheckpointError(f"model: {directory} has {found.name}: {name} is not supported")
    heads = {} if settings.action_head is False else _by_step(directory, HEAD)
    head = proprio = ""
    if heads if settings.action_head is None else settings.action_head:
        head = _choose(directory, HEAD, heads, settings, "policy.action_head is true")
    if settings.proprio:
        files = _by_step(directory, PROPRIO)
        proprio = _choose(directory, PROPRIO, files, settings, f"policy.proprio is {settings.proprio}")
    if head and proprio and settings.step == LATEST and head.removeprefix(HEAD) != proprio.removeprefix(PROPRIO):
        raise ConfigError(f"policy.step: the newest are {head} and {proprio}: give the step of both")
    return ExtraFiles(head=directory / head if head else None, proprio=directory / proprio if proprio else None)


def _by_step(directory: Path, stem: str) -> dict[str, str]:
    """Names of a stem's files by training step, the newest last; CheckpointError for another name."""
    found = {}
    for path in sorted(directory.glob(f"{stem}*.pt")):
        named = re.fullmatch(rf"{stem}--(\d+|{LATEST})_checkpoint\.pt", path.name)
        if named is None:
            raise CheckpointError(
                f"model: {directory} has {path.name}, whose name is not {stem}--<step>_checkpoint.pt: "
                f"rename it, or set {_UNUSED[stem]}"
            )
        found[named[1]] = path.name
    return dict(sorted(found.items(), key=lambda entry: math.inf if entry[0] == LATEST else int(entry[0])))


def _choose(directory: Path, stem: str, files: dict[str, str], settings: OFTSettings, why: str) -> str:
    """The one file of a stem, that of `policy.step`, or the newest."""
    if not files:
        raise CheckpointError(
            f"model: {directory} has no {stem}--*_checkpoint.pt, but {why}: fetch the checkpoint again"
        )
    if settings.step == LATEST:
        return list(files.values())[-1]
    if settings.step is not None:
        if str(settings.step) not in files:
            raise ConfigError(f"policy.step: {directory} has no {stem}--{settings.step}_checkpoint.pt")
        return files[str(settings.step)]
    if len(files) > 1:
        raise ConfigError(f"policy.step: choose the training step of one of {', '.join(files.values())}")
    return next(iter(files.values()))


@dataclass(frozen=True, slots=True, eq=False)
class VectorBounds:
    """Bounds of a normalised vector."""

    low: Numbers
    """[D]: the value of -1, in dimensions where `mask` is True; the others are left as they are."""
    high: Numbers
    """[D]: the value of 1, likewise."""
    mask: NDArray[np.bool_]
    """[D]"""
    limits: tuple[Numbers, Numbers]
    """Two [D], the least and the greatest value of a dimension: its bounds, or, where it is left as it is, the range of
    the data.
    """

    def normalised(self, values: Numbers) -> Numbers:
        """[..., D] in the data's units → -1 .. 1; all dimensions are clipped to that range."""
        scaled = 2.0 * (values - self.low) / (self.high - self.low + _EPSILON) - 1.0
        return np.clip(np.where(self.mask, scaled, values), -1.0, 1.0)

    def unnormalised(self, values: Numbers) -> Numbers:
        """[..., D] normalised → the data's units; numbers beyond -1 and 1 are not clipped."""
        scaled = 0.5 * (values + 1.0) * (self.high - self.low + _EPSILON) + self.low
        return np.where(self.mask, scaled, values)

    def within_limits(self, values: Numbers) -> Numbers:
        """[..., D] clipped to the limits; NaN where they are not finite, since an infinite one would become a limit."""
        return np.where(np.isfinite(values), np.clip(values, *self.limits), np.nan)


@dataclass(frozen=True, slots=True)
class TrainingStatistics:
    """Statistics of the training data by which vectors are normalised."""

    actions: dict[str, VectorBounds]
    """The bounds of actions, by data set."""
    proprio: VectorBounds | None
    """The bounds of the state, from the one data set; None without state."""


def read_statistics(directory: Path, settings: OFTSettings) -> TrainingStatistics:
    """Read the statistics of the data sets whose actions have `policy.dims` numbers.

    dataset_statistics.json overrides norm_stats of config.json. CheckpointError for entries that are missing or wrong.
    """
    name, entries = _entries(directory)
    chosen = _of_width(name, entries, settings.dims)
    if settings.dataset is not None:
        if settings.dataset not in chosen:
            raise ConfigError(f"policy.dataset: {settings.dataset!r} is not one of {', '.join(chosen)}")
        chosen = {settings.dataset: chosen[settings.dataset]}
    if settings.proprio and len(chosen) > 1:
        raise ConfigError(f"policy.dataset: choose one of {', '.join(chosen)}: its statistics normalise the state")
    actions = {
        key: _bounds(f"{name} {key}.action", entry["action"], settings, settings.dims) for key, entry in chosen.items()
    }
    if not settings.proprio:
        return TrainingStatistics(actions, None)
    ((key, entry),) = chosen.items()
    return TrainingStatistics(
        actions, _bounds(f"{name} {key}.proprio", entry.get("proprio"), settings, settings.proprio)
    )


def _entries(directory: Path) -> tuple[str, dict[str, Any]]:
    """The file with statistics, and its entries by data set."""
    name = "dataset_statistics.json"
    entries = read_json(directory / name, required=False)
    if not entries:
        name = "config.json norm_stats"
        entries = read_json(directory / "config.json").get("norm_stats") or {}
    if not isinstance(entries, dict) or not entries:
        raise CheckpointError(f"{directory}: {name} names no data set: actions cannot be un-normalised")
    return name, entries


def _of_width(name: str, entries: Mapping[str, Any], dims: int) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    widths = set[int]()
    for key, entry in entries.items():
        action = entry.get("action") if isinstance(entry, Mapping) else None
        low = action.get("q01", action.get("min")) if isinstance(action, Mapping) else None
        if not isinstance(low, list):
            raise CheckpointError(f"{name} {key}.action lacks q01 or min: copy the checkpoint again")
        widths.add(len(low))
        if len(low) == dims:
            found[str(key)] = entry
    if not found:
        raise ConfigError(f"policy.dims: is {dims}; actions in {name} have {', '.join(map(str, sorted(widths)))}")
    return found


def _bounds(where: str, entry: Any, settings: OFTSettings, count: int) -> VectorBounds:
    if not isinstance(entry, Mapping):
        raise CheckpointError(f"{where} is missing: copy the checkpoint again")
    low, high = (_numbers(where, entry, key, count) for key in _KEYS[settings.bounds])
    given = entry.get("mask")
    if given is not None and not (isinstance(given, list) and all(type(each) is bool for each in given)):
        raise CheckpointError(f"{where}.mask must be a list of true and false")
    mask = np.ones(count, np.bool_) if given is None else np.asarray(given, np.bool_)
    if len(mask) != count:
        raise CheckpointError(f"{where}.mask has {len(mask)} entries, expected {count}")
    if bool((low > high).any()):
        raise CheckpointError(f"{where}: {_KEYS[settings.bounds][0]} is above {_KEYS[settings.bounds][1]}")
    return VectorBounds(low, high, mask, _limits(where, entry, low, high, mask))


def _limits(
    where: str, entry: Mapping[str, Any], low: Numbers, high: Numbers, mask: NDArray[np.bool_]
) -> tuple[Numbers, Numbers]:
    """The limits of each dimension: its bounds, or the range of the data where it is left as it is."""
    if "min" not in entry or "max" not in entry:
        return low, high
    least, most = (_numbers(where, entry, key, len(low)) for key in _KEYS["min_max"])
    return np.where(mask, low, np.minimum(low, least)), np.where(mask, high, np.maximum(high, most))


def _numbers(where: str, entry: Mapping[str, Any], key: str, count: int) -> Numbers:
    given = entry.get(key)
    if not isinstance(given, list) or not all(type(each) in (int, float) for each in given):
        raise CheckpointError(f"{where}.{key} must be a list of numbers")
    if len(given) != count:
        raise CheckpointError(f"{where}.{key} has {len(given)} numbers, expected {count}")
    try:
        values = np.asarray(given, np.float64)
    except OverflowError:
        values = np.full(count, np.inf)
    if not np.isfinite(values).all():
        raise CheckpointError(f"{where}.{key} must be finite")
    return values


@dataclass(frozen=True, slots=True)
class OFTCheckpoint:
    """The settings, the files besides those of OpenVLA, and the statistics of the data."""

    settings: OFTSettings
    files: ExtraFiles
    statistics: TrainingStatistics


def read_checkpoint(directory: Path, settings: Settings) -> OFTCheckpoint:
    """Find and check the files; CheckpointError or ConfigError names what is wrong."""
    check_kind(read_json(directory / "config.json"), "model_type", "openvla", family="openvla_oft")
    chosen, _ = both(lambda: OFTSettings.of(settings), lambda: check_files(directory, *REQUIRED))
    return OFTCheckpoint(chosen, find_files(directory, chosen), read_statistics(directory, chosen))
