"""The section `policy` of the configuration, as a family's settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from edgeflow.policies.family import Settings
from edgeflow_client.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
Name = Annotated[str, Field(min_length=1, max_length=64)]
"""The name of a camera, or of a number of a vector."""
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
"""Settings reject unknown keys, other types and numbers that are not finite."""
REPORTED = 3  # errors of a message


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
