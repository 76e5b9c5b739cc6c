"""An OpenVLA-OFT checkpoint but for what it shares with OpenVLA, and its weights. Torch-free: control checks it too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeflow.policies.family import Settings, check_kind
from edgeflow.policies.openvla_oft.files import ExtraFiles, find_files
from edgeflow.policies.openvla_oft.settings import OFTSettings
from edgeflow.policies.openvla_oft.statistics import Statistics, read_statistics
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError

REQUIRED = ("preprocessor_config.json", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class OFTCheckpoint:
    """The settings, the files besides those of OpenVLA, and the statistics of the data."""

    settings: OFTSettings
    files: ExtraFiles
    statistics: Statistics


def read_checkpoint(directory: Path, settings: Settings) -> OFTCheckpoint:
    """Find and check the files; CheckpointError or ConfigError names what is wrong."""
    check_kind(read_json(directory / "config.json"), "model_type", "openvla", family="openvla_oft")
    chosen = OFTSettings.of(settings)
    for name in REQUIRED:
        if not (directory / name).is_file():
            raise CheckpointError(f"model: {directory} has no {name}: fetch the checkpoint again")
    return OFTCheckpoint(chosen, find_files(directory, chosen), read_statistics(directory, chosen))
