"""Reads Hugging Face checkpoints, and writes tensors: JSON and safetensors, no format that can execute code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from edgeflow.kernels.weights import FloatWeight, Weight
from edgeflow.models.quantization import PARTS, Quantization
from edgeflow.text.checkpoint_json import read_json
from edgeflow.text.weight_files import find_weights
from edgeflow_client.errors import CheckpointError
from edgeflow_client.files import open_regular

CONFIG_FILE = "config.json"
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of one safetensors file, as stored."""
    file = _open(path)
    return {name: _read(file, name, path) for name in file.keys()}  # noqa: SIM118 - not a mapping


def tensor_shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes by name of one safetensors file, from its header; no tensor is read."""
    file = _open(path)
    return {name: _shape(file, name, path) for name in file.keys()}  # noqa: SIM118 - not a mapping


class Weights(Mapping[str, Tensor]):
    """A mapping of published names to tensors, read on access and converted to one dtype and device.

    Projections that a checkpoint holds in 4 bits (models/quantization.py) are read only by `linear`.

    Nothing is cached: the caller owns each tensor, so a model is never in memory twice. A tensor is always a copy,
    aligned for the processor and independent of the file, which is only mapped.
    """

    def __init__(self, directory: Path, dtype: torch.dtype, device: torch.device) -> None:
        sources, where = _sources(directory), f"{directory}: "
        quantization = Quantization.of(read_json(directory / CONFIG_FILE, required=False), where)
        if quantization is not None:
            quantization.check(sources, where)
        self._set(sources, where, dtype, device, quantization)

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: torch.device,
        *,
        where: str = "",
        quantization: Quantization | None = None,
    ) -> Weights:
        """Weights over tensors that are in memory, or are read when they are asked for.

        where: a prefix of names in messages. quantization: None where all of them are floats.
        """
        weights = object.__new__(cls)
        sources: dict[str, Callable[[], Tensor]] = {name: partial(tensors.__getitem__, name) for name in tensors}
        weights._set(sources, where, dtype, device, quantization)
        return weights

    def under(self, prefix: str) -> Weights:
        """The tensors whose names begin with a prefix, by the rest of their names."""
        sources = {name.removeprefix(prefix): read for name, read in self._sources.items() if name.startswith(prefix)}
        return self._with(sources, self._where + prefix, self.dtype)

    def to(self, dtype: torch.dtype) -> Weights:
        """The same tensors, read in another dtype."""
        return self._with(self._sources, self._where, dtype)

    def renamed(self, prefixes: Mapping[str, str]) -> Weights:
        """The same tensors, those under a prefix by a name under another one. prefixes: new by old."""
        sources = dict(self._sources)
        for old, new in prefixes.items():
            sources |= {
                new + name.removeprefix(old): read for name, read in self._sources.items() if name.startswith(old)
            }
        return self._with(sources, self._where, self.dtype)

    def _with(self, sources: dict[str, Callable[[], Tensor]], where: str, dtype: torch.dtype) -> Weights:
        other = object.__new__(Weights)
        other._set(sources, where, dtype, self.device, self._quantization)
        return other

    def _set(
        self,
        sources: dict[str, Callable[[], Tensor]],
        where: str,
        dtype: torch.dtype,
        device: torch.device,
        quantization: Quantization | None,
    ) -> None:
        self._sources = sources
        self._where = where  # in messages, before a name
        self.dtype = dtype
        self.device = device
        self._quantization = quantization

    def take(self, name: str, *shape: int | None) -> Tensor:
        """A tensor of the given shape (None: any length); CheckpointError if it is missing or has another shape."""
        tensor = self[name]
        self._check_shape(name, tensor, shape)
        return tensor

    def check(self, name: str, *shape: int | None) -> None:
        """As `take`, without a copy of the tensor."""
        self._check_shape(name, self.stored(name), shape)

    def _check_shape(self, name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
        lengths = zip(tensor.shape, shape, strict=False)
        if len(tensor.shape) != len(shape) or any(want not in (None, have) for have, want in lengths):
            wanted = ", ".join("any" if length is None else str(length) for length in shape)
            raise CheckpointError(f"{self._where}{name} has shape {list(tensor.shape)}, expected [{wanted}]")

    def linear(self, name: str, outputs: int, inputs: int) -> Weight:
        """The weight of a projection, in the format that the checkpoint stores; CheckpointError as in `take`."""
        if f"{name}.{PARTS[0]}" not in self._sources:
            return FloatWeight(self.take(f"{name}.weight", outputs, inputs))
        if self._quantization is None:
            raise CheckpointError(
                f"{self._where}{name}.{PARTS[0]} is quantised, but {CONFIG_FILE} has no quantization_config"
            )
        where = f"{self._where}{name}."
        return self._quantization.weight(
            lambda part: self.stored(f"{name}.{part}").to(self.device), where, outputs, inputs, self.dtype
        )

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.stored(name)
        if tensor.dtype not in FLOATS:
            raise CheckpointError(f"{self._where}{name} has dtype {tensor.dtype}, expected floats")
        return tensor.to(device=self.device, dtype=self.dtype, copy=True)

    def stored(self, name: str) -> Tensor:
        """A tensor as stored, on the CPU; it is not a copy. CheckpointError if it is missing."""
        if name not in self._sources:
            raise CheckpointError(f"{self._where}{name} is missing: download the checkpoint again")
        return self._sources[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def tensor_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of a checkpoint's tensors by name, from the headers of its files; no tensor is read."""
    return {name: _shape(file, name, path) for name, (file, path) in _places(directory).items()}


def fingerprint(path: Path, settings: Mapping[str, Any] = MappingProxyType({})) -> str:
    """SHA-256 over names and bytes of a checkpoint's JSON files and the first MiB of each weights file.

    settings: with which the checkpoint is served, as in a JSON file; where there are any they count too.
    CheckpointError for a file that cannot be read.
    """
    digest = hashlib.sha256()
    files = [*path.glob("*.json"), *path.glob("*.safetensors"), *path.glob("*.pt")]
    for file in sorted(each for each in files if each.is_file()):
        digest.update(file.name.encode())
        try:
            with file.open("rb") as stream:
                digest.update(stream.read(1 << 20))
        except OSError as error:
            raise CheckpointError(f"{file} is unreadable: copy the checkpoint again") from error
    if settings:
        digest.update(json.dumps(dict(settings), sort_keys=True).encode())
    return digest.hexdigest()


def _sources(directory: Path) -> dict[str, Callable[[], Tensor]]:
    """A reader for each tensor."""
    return {name: partial(_read, file, name, path) for name, (file, path) in _places(directory).items()}


def _places(directory: Path) -> dict[str, tuple[Any, Path]]:
    """The open file of each tensor. All files are opened here, so a truncated one is reported at once."""
    found = find_weights(directory)
    files = {path: (_open(path), path) for path in found.paths}
    if found.places is None:
        return {name: each for each in files.values() for name in each[0].keys()}  # noqa: SIM118 - not a mapping
    return {name: files[path] for name, path in found.places.items()}


def _open(path: Path) -> Any:
    try:
        open_regular(path).close()
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or not safetensors: download it again") from error


def _read(file: Any, name: str, path: Path) -> Tensor:
    try:
        tensor: Tensor = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise _lacking(name, path) from error
    return tensor


def _shape(file: Any, name: str, path: Path) -> tuple[int, ...]:
    try:
        return tuple(file.get_slice(name).get_shape())
    except (SafetensorError, OSError) as error:
        raise _lacking(name, path) from error


def _lacking(name: str, path: Path) -> CheckpointError:
    return CheckpointError(f"{path} lacks the tensor {name} that the index promises: download it again")
