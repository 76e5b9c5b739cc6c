"""Macro files: a checkpoint as one binary file and one JSON that describes it (section III-A)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.kernels.awq import AwqWeight
from edgeflow.lab.kv260.file_plan import (
    BINARY,
    DESCRIPTION,
    FORMAT,
    LAYOUT,
    VERSION,
    FileSpan,
    MacroFilePlan,
    laid_out,
    planned,
)
from edgeflow.lab.kv260.macro import GemmWords, MacroShape, Words, join, pack, split, unpack
from edgeflow.lab.kv260.network import tensor_shapes_of
from edgeflow.lab.progress import Report
from edgeflow.models.checkpoint import CONFIG_FILE, Weights, tensor_shapes
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.published import decoder_config, family_of
from edgeflow.models.quantization import PARTS, Quantization
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError
from edgeflow_client.files import sha256_of

EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class MacroFile:
    """An open macro file: sizes and checksum have been checked, numbers are read on demand."""

    directory: Path
    plan: MacroFilePlan
    config: Mapping[str, Any]
    """The config.json of its model."""

    def channel(self, name: str, channel: int) -> Words:
        """Macros [blocks, E/G, 8 + G] of a channel of a linear, mapped from the file."""
        linear = self.plan.linears[name]
        return self._mapped("<u4", linear.channels[channel], linear.shape.channel_shape(channel))

    def gemm(self, name: str) -> GemmWords:
        """A linear in AutoAWQ's layout."""
        channels = range(len(self.plan.linears[name].channels))
        return unpack(join(tuple(self.channel(name, channel) for channel in channels)), name)

    def half(self, name: str) -> NDArray[np.float16]:
        """A tensor in FP16, mapped from the file."""
        tensor = self.plan.tensors[name]
        return self._mapped("<f2", tensor.span, tensor.shape)

    def _mapped(self, dtype: str, span: FileSpan, shape: tuple[int, ...]) -> NDArray[Any]:
        if not span.nbytes:
            return np.empty(shape, dtype)
        return np.memmap(self.directory / BINARY, dtype, "r", span.offset, shape)


def write_macro(checkpoint: Path, out: Path, report: Report = lambda *_: None) -> MacroFilePlan:
    """Write a checkpoint in AutoAWQ's GEMM layout as a macro file into a directory, which is created if necessary.

    Parts in other float formats become FP16. report: called with the name of a part, its number and the number of
    parts. CheckpointError if macros cannot hold a linear, or FP16 a number.
    """
    plan = planned(tensor_shapes(checkpoint))
    if not plan.linears:
        raise CheckpointError(f"{checkpoint} has no linear in 4 bits: quantise it first")
    weights = Weights(checkpoint, torch.float16, torch.device("cpu"))
    out.mkdir(parents=True, exist_ok=True)
    unfinished = out / f"{BINARY}.unfinished"
    try:
        with unfinished.open("wb") as file:
            digest = _write_parts(file, plan, weights, report)
        unfinished.replace(out / BINARY)
    finally:
        unfinished.unlink(missing_ok=True)
    described = _described(plan, digest, read_json(checkpoint / CONFIG_FILE))
    (out / DESCRIPTION).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    return plan


def open_macro(directory: Path) -> MacroFile:
    """Open a macro file; CheckpointError if it is truncated, modified, of another version or malformed."""
    path = directory / DESCRIPTION
    if not path.is_file():
        raise CheckpointError(
            f"{directory} has no {DESCRIPTION}: write one with `edgeflow quantize --layout awq-macro`"
        )
    values = read_json(path)
    for key, expected in (("format", FORMAT), ("version", VERSION)):
        if values.get(key) != expected:
            raise CheckpointError(f"{path}: {key}: expected {expected!r}, found {values.get(key)!r}")
    plan = _plan_of(values, path)
    if not isinstance(values.get("config"), dict):
        raise CheckpointError(f"{path}: config must be an object")
    binary = values.get("binary")
    if not isinstance(binary, dict) or binary.get("bytes") != plan.nbytes:
        raise CheckpointError(f"{path}: binary.bytes must be {plan.nbytes}, the size of the parts that it lists")
    _check_binary(directory / BINARY, plan.nbytes, binary.get("sha256"))
    return MacroFile(directory, plan, values["config"])


def _write_parts(file: BinaryIO, plan: MacroFilePlan, weights: Weights, report: Report) -> str:
    """Write every part at its place; return the SHA-256 of the file."""
    digest, end = hashlib.sha256(), 0

    def put(span: FileSpan, values: NDArray[Any]) -> None:
        nonlocal end
        data = bytes(span.offset - end) + values.tobytes()
        file.write(data)
        digest.update(data)
        end = span.end

    count = len(plan.linears) + len(plan.tensors)
    for index, (name, linear) in enumerate(plan.linears.items()):
        report(name, index, count)
        for span, macros in zip(linear.channels, split(pack(_words(weights, linear.shape), name)), strict=True):
            put(span, macros.astype("<u4", copy=False))
    for index, (name, tensor) in enumerate(plan.tensors.items(), start=len(plan.linears)):
        report(name, index, count)
        half = weights.take(name, *tensor.shape)
        if not half.isfinite().all():
            raise CheckpointError(f"{name} has numbers that FP16 cannot hold")
        put(tensor.span, half.numpy().astype("<f2", copy=False))
    return digest.hexdigest()


def _words(weights: Weights, shape: MacroShape) -> GemmWords:
    weight = weights.linear(shape.name, shape.outputs, shape.inputs)
    if not isinstance(weight, AwqWeight):
        raise CheckpointError(f"{shape.name}: expected a weight of 4 bits, found {weight.format}")
    return GemmWords(*(part.numpy() for part in weight.gemm()))


def _described(plan: MacroFilePlan, digest: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "layout": LAYOUT,
        "binary": {"file": BINARY, "bytes": plan.nbytes, "sha256": digest},
        "config": config,
        **_entries(plan),
    }


def _entries(plan: MacroFilePlan) -> dict[str, list[dict[str, Any]]]:
    """The parts of a plan as the JSON lists them."""
    linears = [
        {
            "name": name,
            "outputs": linear.shape.outputs,
            "inputs": linear.shape.inputs,
            "group": linear.shape.group,
            "channels": [{"offset": span.offset, "bytes": span.nbytes} for span in linear.channels],
        }
        for name, linear in plan.linears.items()
    ]
    tensors = [
        {"name": name, "shape": list(tensor.shape), "offset": tensor.span.offset, "bytes": tensor.span.nbytes}
        for name, tensor in plan.tensors.items()
    ]
    return {"linears": linears, "tensors": tensors}


def _plan_of(values: Mapping[str, Any], path: Path) -> MacroFilePlan:
    """The plan of a description: it is computed from names and sizes, and must equal the file's entries."""
    try:
        linears = {str(each["name"]): _shape(each) for each in values["linears"]}
        tensors = {str(each["name"]): tuple(map(_size, each["shape"])) for each in values["tensors"]}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: an entry of linears or tensors lacks a name or a size") from error
    plan = laid_out(linears, tensors)
    for kind, entries in _entries(plan).items():
        if len(entries) != len(values[kind]):
            raise CheckpointError(f"{path}: {kind} has a name twice")
        for expected, found in zip(entries, values[kind], strict=True):
            if expected != found:
                raise CheckpointError(f"{path}: {kind}: expected {expected}, found {found}")
    return plan


def _shape(entry: Mapping[str, Any]) -> MacroShape:
    outputs, inputs, group = (_size(entry[key]) for key in ("outputs", "inputs", "group"))
    return MacroShape(outputs, inputs, group, str(entry["name"]))


def _size(value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(value)
    return value


def _check_binary(path: Path, nbytes: int, sha256: object) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: copy the macro file again")
    found = path.stat().st_size
    if found != nbytes:
        raise CheckpointError(f"{path}: expected {nbytes} bytes, found {found}: copy the macro file again")
    digest = sha256_of(path)
    if digest != sha256:
        raise CheckpointError(f"{path}: expected SHA-256 {sha256}, found {digest}")


def macro_weights(file: MacroFile, config: LlamaConfig, dtype: torch.dtype) -> Weights:
    """The weights of a decoder with this configuration; CheckpointError if the file belongs to another model."""
    check_model(file, config)
    quantization = Quantization.of(file.config, f"{file.directory}: ")
    where = f"{file.directory / BINARY}: "
    return Weights.of(_Tensors(file), dtype, torch.device("cpu"), where=where, quantization=quantization)


def check_model(file: MacroFile, config: LlamaConfig) -> None:
    """Raise CheckpointError for the first tensor or value of config.json that does not match the model."""
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
