"""The statistics of a checkpoint's data sets, as OpenVLA-OFT normalises with them. Torch-free.

Published source: `normalize_proprio` of openvla-oft's experiments/robot/openvla_utils.py and `_unnormalize_actions` of
prismatic/extern/hf/modeling_prismatic.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeflow.policies.openvla_oft.settings import OFTSettings
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError, ConfigError

_KEYS = {"q99": ("q01", "q99"), "min_max": ("min", "max")}
_EPSILON = 1e-8

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """low, high [D]: what -1 and 1 stand for where mask [D] is True; other dimensions are left as they are.

    limits: two [D], the least and the most of a dimension: its bounds, or where it is left as it is all that the data
    has.
    """

    low: Numbers
    high: Numbers
    mask: NDArray[np.bool_]
    limits: tuple[Numbers, Numbers]

    def normalised(self, values: Numbers) -> Numbers:
        """[..., D] in the data's units → -1 .. 1; what is left as it is, is cut to that too."""
        scaled = 2.0 * (values - self.low) / (self.high - self.low + _EPSILON) - 1.0
        return np.clip(np.where(self.mask, scaled, values), -1.0, 1.0)

    def unnormalised(self, values: Numbers) -> Numbers:
        """[..., D] normalised → the data's units; numbers beyond -1 and 1 are not cut."""
        scaled = 0.5 * (values + 1.0) * (self.high - self.low + _EPSILON) + self.low
        return np.where(self.mask, scaled, values)

    def within_limits(self, values: Numbers) -> Numbers:
        """[..., D] cut to the limits; NaN where they are not finite, since an infinite one would become a limit."""
        return np.where(np.isfinite(values), np.clip(values, *self.limits), np.nan)


@dataclass(frozen=True, slots=True)
class Statistics:
    """actions: bounds by data set. proprio: bounds of the state, of the one data set where there is a state."""

    actions: dict[str, Bounds]
    proprio: Bounds | None


def read_statistics(directory: Path, settings: OFTSettings) -> Statistics:
    """Those of the data sets whose actions have `policy.dims` numbers.

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
        return Statistics(actions, None)
    ((key, entry),) = chosen.items()
    return Statistics(actions, _bounds(f"{name} {key}.proprio", entry.get("proprio"), settings, settings.proprio))


def _entries(directory: Path) -> tuple[str, dict[str, Any]]:
    """The file and its data sets."""
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


def _bounds(where: str, entry: Any, settings: OFTSettings, count: int) -> Bounds:
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
    return Bounds(low, high, mask, _limits(where, entry, low, high, mask))


def _limits(
    where: str, entry: Mapping[str, Any], low: Numbers, high: Numbers, mask: NDArray[np.bool_]
) -> tuple[Numbers, Numbers]:
    """The bounds, wider by all that the data has where a dimension is left as it is."""
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
