"""A flow-matching checkpoint but for its weights. Torch-free: control checks a checkpoint before a worker loads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from edgeflow.artifacts.files import open_artifact
from edgeflow.artifacts.manifest import is_artifact
from edgeflow.policies.flow.processors import FlowProcessors
from edgeflow.policies.flow.settings import FlowSettings
from edgeflow.policies.lerobot.processors import PREPROCESSOR
from edgeflow.text.weight_files import find_weights

Config = TypeVar("Config")


@dataclass(frozen=True, slots=True)
class FlowCheckpoint(Generic[Config]):
    """The network's sizes, the pipelines with their statistics, and the settings."""

    config: Config
    processors: FlowProcessors
    settings: FlowSettings


def has_processors(directory: Path) -> bool:
    """True for a checkpoint with its pipelines; recordings of a network have none."""
    return (directory / PREPROCESSOR).is_file()


def check_weights(directory: Path) -> None:
    """CheckpointError for a directory without weights, or for an artifact whose files are not there."""
    if is_artifact(directory):
        open_artifact(directory)
    else:
        find_weights(directory)
