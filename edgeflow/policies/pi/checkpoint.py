"""A checkpoint of π0 or π0.5 but for its weights. Torch-free."""

from __future__ import annotations

from pathlib import Path

from edgeflow.policies.family import Settings
from edgeflow.policies.flow.checkpoint import FlowCheckpoint, check_weights
from edgeflow.policies.flow.processors import FlowProcessors, load_processors
from edgeflow.policies.flow.settings import read_settings
from edgeflow.policies.pi.config import PI0, PI05, PiConfig, load_config

WRITERS = {PI0: "pi0_new_line_processor", PI05: "pi05_prepare_state_tokenizer_processor_step"}
"""The steps that write the text."""
FOLDERS = ("tokenizer", ".")


def read_checkpoint(directory: Path, kind: str, settings: Settings) -> FlowCheckpoint[PiConfig]:
    """Read and check all files but the weights, once; CheckpointError or ConfigError names what is wrong."""
    config = load_config(directory, kind)
    processors = read_processors(directory, config)
    check_weights(directory)
    return FlowCheckpoint(config, processors, read_settings(kind, directory, settings, config.flow))


def read_processors(directory: Path, config: PiConfig) -> FlowProcessors:
    """Read and check both pipelines."""
    kind = config.kind
    return load_processors(directory, config.flow, writer=WRITERS[kind], reads_state=kind == PI05, folders=FOLDERS)
