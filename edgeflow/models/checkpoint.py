"""Reading Hugging Face checkpoints: JSON and safetensors, nothing that can execute."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from edgeflow.errors import CheckpointError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """A JSON object from the checkpoint; an absent optional file is empty."""
    if not path.is_file():
        if required:
            raise CheckpointError(f"{path.parent} has no {path.name}: name the directory of a checkpoint")
        return {}
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON: copy the checkpoint again") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return values


class Weights:
    """Tensors by their published names, read on demand and converted to one dtype and device."""

    def __init__(self, directory: Path, dtype: torch.dtype, device: torch.device) -> None:
        self._directory = directory
        self._dtype = dtype
        self.device = device
        self._file_of = _tensor_files(directory)

    @property
    def names(self) -> set[str]:
        return set(self._file_of)

    def get(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """One tensor; CheckpointError when it is missing or of another shape."""
        if name not in self._file_of:
            raise CheckpointError(f"{self._directory} lacks the tensor {name}")
        with _open(self._file_of[name]) as file:
            tensor: Tensor = file.get_tensor(name)
        if shape is not None and tuple(tensor.shape) != shape:
            raise CheckpointError(f"{name} has shape {list(tensor.shape)}, expected {list(shape)}")
        return tensor.to(device=self.device, dtype=self._dtype)

    def under(self, prefix: str, keep: Callable[[str], bool] = lambda _: True) -> dict[str, Tensor]:
        """All tensors below a prefix that `keep` accepts, by the rest of their names."""
        names = {name.removeprefix(prefix): name for name in self._file_of if name.startswith(prefix)}
        return {short: self.get(name) for short, name in names.items() if keep(short)}


def _tensor_files(directory: Path) -> dict[str, Path]:
    if (directory / INDEX_FILE).is_file():
        index = read_json(directory / INDEX_FILE).get("weight_map")
        if not isinstance(index, dict):
            raise CheckpointError(f"{directory / INDEX_FILE} has no weight_map")
        files = {str(name): directory / Path(str(file)).name for name, file in index.items()}
        missing = sorted({file.name for file in files.values() if not file.is_file()})
        if missing:
            raise CheckpointError(f"{directory} lacks {missing[0]}, named by {INDEX_FILE}: download it again")
        return files
    path = directory / SINGLE_FILE
    if not path.is_file():
        raise CheckpointError(f"{directory} has neither {SINGLE_FILE} nor {INDEX_FILE}: only safetensors are read")
    with _open(path) as file:
        return dict.fromkeys(file.keys(), path)


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or not safetensors: download it again") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of one safetensors file, as stored."""
    with _open(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
