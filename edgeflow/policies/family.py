"""The entry of a family of policies in the registry (policies/registry.py), and its section of the configuration.

Control reads it too, so nothing here imports torch; `load` and `prepare` import theirs when they are called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.types import Mode

if TYPE_CHECKING:
    from edgeflow.engine.control.engine import EngineOptions, PassEngine
    from edgeflow.engine.policy import LoadOptions, Policy, Published
    from edgeflow.kernels.table.model_shape import ModelShape

Settings = Mapping[str, Any]
"""The keys of the configuration's section `policy`, but `family`."""

TOKEN_MODES = (Mode.SERIAL, Mode.PIPELINED, Mode.SPECULATIVE)
DENOISING_MODES = (Mode.SERIAL, Mode.PIPELINED)
"""Denoising steps cannot be drafted."""
ONE_PASS_MODES = (Mode.SERIAL,)
Model = TypeVar("Model", bound=BaseModel)
Name = Annotated[str, Field(min_length=1, max_length=64)]
"""The name of a camera, or of a number of a vector."""
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
"""Of settings: other keys, other types and numbers that are not finite are rejected."""
REPORTED = 3  # errors of a message


@dataclass(frozen=True, slots=True)
class Files:
    """The JSON files that tell a checkpoint's family: config.json, and cases.json where recordings are verified."""

    config: Mapping[str, Any]
    cases: Mapping[str, Any] | None = None


def check_kind(config: Mapping[str, Any], key: str, kind: str, *, family: str) -> None:
    """CheckpointError for a config.json without the entry by which its family is known, or with another one."""
    if config.get(key) != kind:
        raise CheckpointError(f"policy.family: {family}, but config.json has {described_kind(config, key)}")


def described_kind(config: Mapping[str, Any], key: str = "") -> str:
    """The family that a config.json states, for messages. key: the entry that should state it; by default any."""
    stated = [f"{each} {repr(config[each])[:60]}" for each in ("model_type", "type") if each in config]
    if key in config or (not key and stated):
        return " and ".join(stated)
    return " but ".join([f"no {key or 'model_type and no type'}", *stated])


def decoder_shape(directory: Path, rows: int) -> ModelShape:
    """The shape of the decoder that config.json describes. rows: of a prompt."""
    from edgeflow.models.shape import checkpoint_shape

    return checkpoint_shape(directory, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How policies of one architecture are recognised, checked, loaded and served.

    name: as in `policy.family`. modes: those that differ for its policies, beside depth and auto. detect: True for a
    checkpoint of the family. check: CheckpointError or ConfigError for a directory or settings that could not be
    served, without reading weights. load: the checkpoint's configuration, from which the policy is loaded. prepare: the
    engine that serves a loaded policy. shape: the sizes of the decoder and its products, for prompts of so many rows,
    without reading weights. formats: its slots may be in other KV formats than the model's own.
    """

    name: str
    modes: tuple[Mode, ...]
    detect: Callable[[Files], bool]
    check: Callable[[Path, Settings], object]
    load: Callable[[Path, Settings, LoadOptions], Published]
    prepare: Callable[[Policy, EngineOptions], PassEngine]
    shape: Callable[[Path, int], ModelShape] = decoder_shape
    formats: bool = False

    @property
    def every_mode(self) -> tuple[Mode, ...]:
        """The modes of its policies, with those that are made of others."""
        return (*self.modes, *([Mode.DEPTH] if Mode.PIPELINED in self.modes else []), Mode.AUTO)


def refuse_crop(family: str, options: LoadOptions) -> None:
    """ConfigError for a centre crop, which policies of a family do not have."""
    if options.center_crop:
        raise ConfigError(f"center_crop: policies of this family, {family}, take whole images; remove it")


def check_files(directory: Path, *names: str) -> None:
    """CheckpointError for a directory without one of these files."""
    for name in names:
        if not (directory / name).is_file():
            raise CheckpointError(f"model: {directory} has no {name}: fetch the checkpoint again")


def check_length(key: str, entries: Sequence[object], size: int, what: str, *, kind: str = "entries") -> None:
    """ConfigError for a list that is given and does not have an entry for each number of a vector."""
    if entries and len(entries) != size:
        raise ConfigError(f"policy.{key}: {len(entries)} {kind}, but {what} has {size} numbers")


def check_unique(key: str, names: list[str]) -> None:
    """ConfigError for a name that is repeated."""
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"policy.{key}: {twice[0]!r} is there twice")


def validated(family: str, model: type[Model], given: Settings, missing: Mapping[str, str]) -> Model:
    """The settings of a family; ConfigError names each wrong key once, what is wrong and what to write.

    missing: what to write for a key that is not there.
    """
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        details: dict[str, ErrorDetails] = {}
        for each in error.errors():
            details.setdefault(".".join(map(str, each["loc"])), each)
        lines = [_described(family, model, key, detail, missing) for key, detail in details.items()]
        raise ConfigError("; ".join(lines[:REPORTED])) from None


def _described(family: str, model: type[BaseModel], key: str, detail: ErrorDetails, missing: Mapping[str, str]) -> str:
    if detail["type"] == "extra_forbidden":
        return f"policy.{key}: this family, {family}, has no such setting; it has {', '.join(model.model_fields)}"
    if detail["type"] == "missing":
        return f"policy.{key}: is missing; {missing[key]}"
    message = detail["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"policy.{key}: {json.dumps(detail['input'], default=str)[:60]} {message}"
