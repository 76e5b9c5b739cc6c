"""Bundles of OpenVLA-OFT: a checkpoint with outputs that were recorded from the original implementation.

`cases.json` has the constants that the original chose by its command line, and the cases: images, instruction, and
whether state and action head took part. `expected.safetensors` holds tensors as `<case>.<in|mid|out>.<quantity>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.lab.verify.recorded.bundle import CASES_FILE, TENSORS_FILE, Entry, read_image
from edgeflow.models.checkpoint import read_tensors
from edgeflow.policies.openvla_oft.config import MOST, PRESETS, OFTSettings
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError

_BOUNDS = {"bounds_q99": "q99", "bounds": "min_max"}
_CUSTOMARY_RATE_HZ = 10.0  # of a platform without preset; no recorded value depends on it


@dataclass(frozen=True, slots=True, kw_only=True)
class OFTCase:
    """A recorded case. images: RGB [H, W, 3] each. proprio, action_head: whether they took part. values: its entry in
    cases.json. tensors: by `<in|mid|out>.<quantity>`."""

    name: str
    images: list[NDArray[np.uint8]]
    instruction: str
    unnorm_key: str
    proprio: bool
    action_head: bool
    values: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @property
    def input_ids(self) -> tuple[int, ...]:
        """The prompt's text ids as recorded; CheckpointError where they are not whole numbers."""
        ids = self.tensor("in.input_ids").flatten()
        if ids.dtype not in (torch.int64, torch.int32) or not len(ids):
            raise CheckpointError(f"{TENSORS_FILE}: {self.name}.in.input_ids has {len(ids)} values of {ids.dtype}")
        return tuple(ids.tolist())

    @property
    def raw_state(self) -> tuple[float, ...]:
        """The state as it was given, in the data's units; CheckpointError where it is not a vector."""
        raw = self.tensor("in.proprio_raw")
        if raw.dim() != 1:
            raise CheckpointError(f"{TENSORS_FILE}: {self.name}.in.proprio_raw has shape {list(raw.shape)}")
        return tuple(raw.tolist())

    def tensor(self, name: str) -> Tensor:
        """A tensor that must be there."""
        if name not in self.tensors:
            raise CheckpointError(f"{TENSORS_FILE} lacks {self.name}.{name}: name the directory of a bundle")
        return self.tensors[name]


@dataclass(frozen=True, slots=True)
class OFTBundle:
    """constants: the settings of all cases, but for images, proprio and action_head. strays: tensors of no case."""

    constants: Mapping[str, Any]
    cases: list[OFTCase]
    strays: tuple[str, ...] = ()

    def settings(self, case: OFTCase) -> OFTSettings:
        """The settings that a case was recorded with."""
        proprio = self.constants["proprio"] if case.proprio else 0
        names = [f"image_{index}" for index in range(len(case.images))]
        own = {"images": len(names), "camera_names": names, "proprio": proprio, "action_head": case.action_head}
        return OFTSettings.of({**self.constants, **own, "dataset": case.unnorm_key})


def read_oft_bundle(directory: Path) -> OFTBundle:
    """Read all cases; CheckpointError names the case and the entry at fault."""
    values = read_json(directory / CASES_FILE)
    entries = values.get("cases")
    if not isinstance(entries, list) or not entries:
        raise CheckpointError(f"{directory / CASES_FILE} lists no cases")
    if not (directory / TENSORS_FILE).is_file():
        raise CheckpointError(f"{directory} has no {TENSORS_FILE}: name the directory of a bundle")
    tensors = read_tensors(directory / TENSORS_FILE)
    cases = [_case(directory, index, each, values.get("unnorm_key"), tensors) for index, each in enumerate(entries)]
    names = [case.name for case in cases]
    if len(set(names)) < len(names):
        raise CheckpointError(f"{directory / CASES_FILE}: two cases have the same name")
    prefixes = tuple(f"{name}." for name in names)
    strays = tuple(sorted(each for each in tensors if not each.startswith(prefixes)))
    return OFTBundle(_constants(values.get("constants")), cases, strays)


def _constants(values: Any) -> dict[str, Any]:
    where = f"{CASES_FILE} constants"
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{where} must be an object")
    names = {"chunk": "NUM_ACTIONS_CHUNK", "dims": "ACTION_DIM", "proprio": "PROPRIO_DIM"}
    for key, name in names.items():
        if type(values.get(name)) is not int or not 1 <= values[name] <= MOST[key]:
            raise CheckpointError(f"{where}.{name} must be a whole number, 1 to {MOST[key]}")
    bounds = values.get("normalization")
    if not isinstance(bounds, str) or bounds not in _BOUNDS:
        raise CheckpointError(f"{where}.normalization: {bounds!r} is not one of {', '.join(_BOUNDS)}")
    preset = PRESETS.get(str(values.get("platform")).lower(), {})
    found = {key: values[name] for key, name in names.items()}
    return {**found, "bounds": _BOUNDS[bounds], "control_rate_hz": preset.get("control_rate_hz", _CUSTOMARY_RATE_HZ)}


def _case(directory: Path, index: int, values: Any, key: Any, tensors: Mapping[str, Tensor]) -> OFTCase:
    where = f"{CASES_FILE} cases[{index}]"
    entry = Entry(where, values)
    name, images = entry.text("name"), entry.texts("images")
    flags = {flag: values.get(flag) for flag in ("proprio", "action_head")}
    for flag, value in flags.items():
        if not isinstance(value, bool):
            raise CheckpointError(f"{where}.{flag} must be true or false")
    if not 1 <= len(images) <= MOST["images"] or values.get("num_images", len(images)) != len(images):
        raise CheckpointError(
            f"{where}.images: {len(images)} images of at most {MOST['images']}, num_images is "
            f"{values.get('num_images')}"
        )
    unnorm_key = values.get("unnorm_key", key)
    if not isinstance(unnorm_key, str):
        raise CheckpointError(f"{where}.unnorm_key must be text")
    prefix = name + "."
    return OFTCase(
        name=name,
        images=[read_image(directory / image) for image in images],
        instruction=entry.text("instruction"),
        unnorm_key=unnorm_key,
        **flags,
        values=values,
        tensors={each.removeprefix(prefix): tensor for each, tensor in tensors.items() if each.startswith(prefix)},
    )
