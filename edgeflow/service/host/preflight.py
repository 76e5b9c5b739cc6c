"""Checks of a model directory that need no loading, so that a wrong one is refused at once."""

from __future__ import annotations

import json
from pathlib import Path

from edgeflow.artifacts.files import open_artifact
from edgeflow.artifacts.manifest import is_artifact
from edgeflow.config import PolicyConfig
from edgeflow.errors import CheckpointError
from edgeflow.files.regular import open_regular, read_regular
from edgeflow.policies.registry import family_of
from edgeflow.text.checkpoint_json import MAX_JSON_BYTES
from edgeflow.text.weight_files import find_weights

MAX_HEADER_BYTES = 100 << 20


def check_model_directory(path: Path, policy: PolicyConfig | None = None) -> None:
    """Check a model directory and the settings of its policy; typed StartErrors name what is missing, truncated or
    unsupported.
    """
    config = path / "config.json"
    if not config.is_file():
        raise CheckpointError(f"model: {path} has no config.json: give the directory of a Hugging Face checkpoint")
    _read_object(config)
    asked = policy or PolicyConfig()
    family_of(path, asked.family).check(path, asked.settings)
    if is_artifact(path):
        open_artifact(path)
        return
    for file in find_weights(path).paths:
        try:
            _check_length(file)
        except OSError as error:
            raise CheckpointError(f"model: cannot read {file}: {error.strerror}") from None


def _read_object(file: Path) -> dict[str, object]:
    try:
        value = json.loads(read_regular(file, MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        raise CheckpointError(f"model: {file} is not readable JSON: fetch the checkpoint again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"model: {file} is not a JSON object: fetch the checkpoint again")
    return value


def _check_length(file: Path) -> None:
    """Check a safetensors file: an eight-byte length, a JSON header of that length, and the tensors it lists."""
    size = file.stat().st_size
    with open_regular(file) as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        if size < 8 or header_bytes > min(size - 8, MAX_HEADER_BYTES):
            raise _truncated(file, size)
        try:
            header = json.loads(stream.read(header_bytes))
            ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            raise CheckpointError(f"model: {file} is not a safetensors file: fetch the checkpoint again") from None
    if size != 8 + header_bytes + max(ends, default=0):
        raise _truncated(file, size)


def _truncated(file: Path, size: int) -> CheckpointError:
    return CheckpointError(f"model: {file} is truncated ({size} bytes): fetch the checkpoint again")
