"""Reading a checkpoint's JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgeflow_client.errors import CheckpointError
from edgeflow_client.files import read_regular

MAX_JSON_BYTES = 64 << 20
TRAINED = ("pretrained_model", "last/pretrained_model", "checkpoints/last/pretrained_model")
"""Where LeRobot's training puts a checkpoint, below the folder of a step, of all steps, or of the training."""


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """Read a JSON object; a missing optional file counts as empty."""
    if not path.is_file():
        if required:
            raise CheckpointError(f"{path.parent} has no {path.name}: {where_it_is(path.parent, path.name)}")
        return {}
    values = read_json_value(path)
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold a JSON object: copy the checkpoint again")
    return values


def where_it_is(directory: Path, name: str) -> str:
    """Advice for a folder without the file of a checkpoint: LeRobot writes that below the folder of a training."""
    for nested in TRAINED:
        if (directory / nested / name).is_file():
            return f"give {directory / nested}"
    return "give the directory of a checkpoint"


def read_json_value(path: Path) -> Any:
    """Read a JSON value of bounded size."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path} has more than {MAX_JSON_BYTES} bytes: too large for a configuration file")
        return json.loads(read_regular(path, MAX_JSON_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON: copy the checkpoint again") from error
