"""The section `policy` of the configuration, as a family's settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from edgeflow.policies.family import Settings
from edgeflow.policies.lerobot import ACTION, STATE
from edgeflow_client.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
Name = Annotated[str, Field(min_length=1, max_length=64)]
"""The name of a camera, or of a number of a vector."""
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
"""Settings reject unknown keys, other types and numbers that are not finite."""
REPORTED = 3  # errors of a message
MOST_RATE = 1000.0  # Hz
MOST_SEED = (1 << 63) - 1


def _rate(value: float) -> float:
    if not 0 < value <= MOST_RATE:
        raise ValueError(f"must be above 0 and at most {MOST_RATE:g}")
    return value


class StatedSettings(BaseModel):
    """Settings that checkpoints in LeRobot's layout lack: the control rate, and the meaning of actions and state."""

    model_config = STRICT

    control_rate_hz: Annotated[float, AfterValidator(_rate)] = Field(
        description="rate of the actions in the training data"
    )
    action_names: list[Name] = Field([], description="names of the numbers of an action; empty = not stated, as below")
    action_units: list[Name] = Field([], description="units of the numbers of an action")
    action_low: list[float] = Field([], description="lowest value of each number of an action")
    action_high: list[float] = Field([], description="highest value of each number of an action")
    action_relative: list[bool] = Field([], description="per number of an action: true for a displacement")
    frame: Literal["tool", "base"] = Field("base", description="frame of displacements of the tool")
    rotation: Literal["rotvec", "euler_xyz"] = Field("euler_xyz", description="form of rotations in an action")
    state_names: list[Name] = Field([], description="names of the numbers of the state vector")
    state_units: list[Name] = Field([], description="units of the numbers of the state vector")
    noise_seed: Annotated[int, Field(ge=0, le=MOST_SEED)] = Field(
        0, description="seed of the noise that answers start from"
    )
    noise_scale: float = Field(1.0, ge=0.0, le=1.0, description="share of that noise; 0 = answers start from its mean")


def check_stated(read: StatedSettings, *, action: int, state: int) -> None:
    """Raise ConfigError for lists of other lengths than the vectors, repeated names and limits without room."""
    for key in ("action_names", "action_units", "action_low", "action_high", "action_relative"):
        check_length(key, getattr(read, key), action, ACTION)
    for key in ("state_names", "state_units"):
        check_length(key, getattr(read, key), state, STATE)
    for key in ("action_names", "state_names"):
        check_unique(key, getattr(read, key))
    pairs = zip(read.action_low, read.action_high, strict=False)
    wrong = [(low, high) for low, high in pairs if low >= high]
    if wrong:
        raise ConfigError(f"policy.action_high: {wrong[0][1]} is not above action_low, {wrong[0][0]}")


def check_length(key: str, entries: Sequence[object], size: int, what: str, *, kind: str = "entries") -> None:
    """Raise ConfigError for a configured list without exactly one entry per number of a vector."""
    if entries and len(entries) != size:
        raise ConfigError(f"policy.{key}: {len(entries)} {kind}, but {what} has {size} numbers")


def check_unique(key: str, names: list[str]) -> None:
    """Raise ConfigError for a repeated name."""
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
