"""An ACT checkpoint but for its weights. Torch-free: control checks a checkpoint before a worker loads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeflow.policies.act.config import ACTConfig, load_config
from edgeflow.policies.act.processors import load_processors
from edgeflow.policies.act.settings import ACTSettings, read_settings
from edgeflow.policies.family import Settings
from edgeflow.policies.lerobot.processors import Normalisation
from edgeflow.text.weight_files import find_weights


@dataclass(frozen=True, slots=True)
class ACTCheckpoint:
    """The network's sizes, the pipelines with their statistics, and the settings."""

    config: ACTConfig
    processors: Normalisation
    settings: ACTSettings


def read_checkpoint(directory: Path, settings: Settings) -> ACTCheckpoint:
    """Read and check all files but the weights, once; CheckpointError or ConfigError names what is wrong."""
    config = load_config(directory)
    processors = load_processors(directory, config)
    find_weights(directory)
    return ACTCheckpoint(config, processors, read_settings(settings, config))
