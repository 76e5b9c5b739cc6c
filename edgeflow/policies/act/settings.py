"""The section `policy` of the configuration for ACT: what its checkpoints do not state."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from edgeflow.policies.act.config import ACTConfig
from edgeflow.policies.family import Settings
from edgeflow.policies.lerobot.features import STATE
from edgeflow.policies.settings import Name, validated
from edgeflow_client.errors import ConfigError

Rate = Annotated[float, Field(gt=0, le=1000)]
MISSING = {
    "control_rate_hz": "the checkpoint does not state it: add the rate of the training's data, "
    'such as "policy": {"control_rate_hz": 50}'
}


class ACTSettings(BaseModel):
    """control_rate_hz: rate at which the training's actions followed each other. action_names, state_names: of their
    numbers, in order; empty = not stated.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    control_rate_hz: Rate
    action_names: list[Name] = []
    state_names: list[Name] = []


def read_settings(settings: Settings, config: ACTConfig) -> ACTSettings:
    """The settings for a checkpoint; ConfigError names the key, what is wrong and what to write."""
    read = validated("act", ACTSettings, settings, MISSING)
    _check_names("action_names", read.action_names, config.action, "action")
    _check_names("state_names", read.state_names, config.state, STATE)
    return read


def _check_names(key: str, names: list[str], size: int, what: str) -> None:
    if names and len(names) != size:
        raise ConfigError(f"policy.{key}: {len(names)} names, but {what} has {size} numbers")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"policy.{key}: {twice[0]!r} is there twice")
