"""A SmolVLA checkpoint but for its weights. Torch-free."""

from __future__ import annotations

from pathlib import Path

from edgeflow.policies.family import Settings
from edgeflow.policies.flow.checkpoint import FlowCheckpoint, check_weights
from edgeflow.policies.flow.processors import FlowProcessors, load_processors
from edgeflow.policies.flow.settings import read_settings
from edgeflow.policies.smolvla.config import SmolVLAConfig, load_config

WRITER = "smolvla_new_line_processor"
"""The step that writes the text."""
FOLDERS = ("vlm", "tokenizer", ".")


def read_checkpoint(directory: Path, settings: Settings) -> FlowCheckpoint[SmolVLAConfig]:
    """Read and check all files but the weights, once; CheckpointError or ConfigError names what is wrong."""
    config = load_config(directory)
    processors = read_processors(directory, config)
    check_weights(directory)
    return FlowCheckpoint(config, processors, read_settings("smolvla", directory, settings, config.flow))


def read_processors(directory: Path, config: SmolVLAConfig) -> FlowProcessors:
    """Read and check both pipelines."""
    folders = (config.model, *FOLDERS)
    return load_processors(directory, config.flow, writer=WRITER, reads_state=False, folders=folders)
