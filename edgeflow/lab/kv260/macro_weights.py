"""The weights of a decoder from a macro file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from edgeflow.lab.kv260.file import MacroFile
from edgeflow.lab.kv260.network import tensor_shapes_of
from edgeflow.lab.kv260.plan import BINARY
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.published import decoder_config, family_of
from edgeflow.models.quantization import PARTS, Quantization
from edgeflow_client.errors import CheckpointError

EMBEDDING = "embed_tokens.weight"


def macro_weights(file: MacroFile, config: LlamaConfig, dtype: torch.dtype) -> Weights:
    """The weights of a decoder of this configuration; CheckpointError where the file is of another model."""
    check_model(file, config)
    quantization = Quantization.of(file.config, f"{file.directory}: ")
    where = f"{file.directory / BINARY}: "
    return Weights.of(_Tensors(file), dtype, torch.device("cpu"), where=where, quantization=quantization)


def check_model(file: MacroFile, config: LlamaConfig) -> None:
    """CheckpointError names the first tensor, or the first value of config.json, that is not that of the model."""
    stem = stem_of(file)
    found = {name: each.shape for name, each in file.plan.tensors.items()}
    found |= {f"{name}.weight": (each.shape.outputs, each.shape.inputs) for name, each in file.plan.linears.items()}
    expected = dict(tensor_shapes_of(config, stem))
    for name, shape in expected.items():
        if found.get(name) != shape:
            has = list(found[name]) if name in found else "none"
            raise CheckpointError(f"{file.directory}: {name}: expected shape {list(shape)}, found {has}")
    extra = [name for name in found if name.startswith(f"{stem}layers.") and name not in expected]
    if extra:
        raise CheckpointError(f"{file.directory}: {extra[0]}: expected none, found shape {list(found[extra[0]])}")
    _check_config(file, config)


def stem_of(file: MacroFile) -> str:
    """The text before `embed_tokens` in the names of the file's tensors."""
    stems = [name.removesuffix(EMBEDDING) for name in file.plan.tensors if name.endswith(EMBEDDING)]
    if len(stems) != 1:
        raise CheckpointError(f"{file.directory}: expected one tensor {EMBEDDING}, found {len(stems)}")
    return stems[0]


def _check_config(file: MacroFile, config: LlamaConfig) -> None:
    values = file.config.get("text_config") or file.config
    try:
        theirs = decoder_config(values, family_of(file.config))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file.directory}: the configuration in the JSON is not one of a decoder") from error
    for field in fields(config):
        expected, found = getattr(config, field.name), getattr(theirs, field.name)
        if expected != found:
            raise CheckpointError(f"{file.directory}: config {field.name}: expected {expected}, found {found}")


class _Tensors(Mapping[str, Tensor]):
    """The tensors of a macro file under the names of an AutoAWQ checkpoint, read on access."""

    def __init__(self, file: MacroFile) -> None:
        self._file = file
        self._parts = {f"{name}.{part}": (name, part) for name in file.plan.linears for part in PARTS}

    def __getitem__(self, name: str) -> Tensor:
        if name in self._parts:
            linear, part = self._parts[name]
            return torch.from_numpy(np.ascontiguousarray(getattr(self._file.gemm(linear), part)))
        return torch.from_numpy(np.array(self._file.half(name)))

    def __iter__(self) -> Iterator[str]:
        return iter((*self._parts, *self._file.plan.tensors))

    def __len__(self) -> int:
        return len(self._parts) + len(self._file.plan.tensors)
