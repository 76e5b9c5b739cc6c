"""The family: recognises, checks and loads checkpoints. Control imports it, so nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from edgeflow.policies.family import ONE_PASS_MODES, Family, Settings, check_files
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from edgeflow.engine.policy import LoadOptions, Published


@dataclass(frozen=True)
class TemplateConfig:
    """The numbers in config.json."""

    joints: int
    side: int
    """Pixels of each side of the camera."""
    width: int
    """Channels and hidden units of the network."""
    horizon: int
    rate_hz: float


def read_config(directory: Path) -> TemplateConfig:
    """The configuration of a checkpoint; CheckpointError names what is missing or not positive."""
    found = read_json(directory / "config.json")
    for name in (field.name for field in fields(TemplateConfig)):
        if not isinstance(found.get(name), int | float) or found[name] <= 0:
            raise CheckpointError(f"model: {name} in config.json of {directory} must be positive: {found.get(name)!r}")
    return TemplateConfig(**{field.name: found[field.name] for field in fields(TemplateConfig)})


def check(directory: Path, settings: Settings) -> None:
    """Reject what could not be served; no weights are read."""
    if settings:
        raise ConfigError(f"policy.{min(settings)}: this family, template, has no settings; remove it")
    check_files(directory, "model.safetensors")
    read_config(directory)


def load(directory: Path, settings: Settings, options: LoadOptions) -> Published:
    from edgeflow_template.policy import PublishedTemplate

    check(directory, settings)
    return PublishedTemplate(directory, read_config(directory))


TEMPLATE = Family(
    name="template",
    modes=ONE_PASS_MODES,
    detect=lambda files: files.config.get("type") == "template",
    check=check,
    load=load,
)
