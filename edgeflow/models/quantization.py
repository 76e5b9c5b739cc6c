"""The quantisation that a checkpoint states in `quantization_config`, and its weights in AutoAWQ's GEMM layout."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgeflow.kernels.awq import AWQ, GROUPS, PER_WORD, AwqWeight
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError, ConfigError

BITS = 4
VERSION = "gemm"
PARTS = ("qweight", "qzeros", "scales")
"""The tensors that stand for the weight of a projection."""
FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("q_proj", "kv_a_proj_with_mqa"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("gate_proj", "up_proj"),
)
"""Projections of a layer that are computed as one."""
_IN_A_LAYER = re.compile(r"(^|\.)layers\.\d+\..*_proj(_with_mqa)?\.weight$")


@dataclass(frozen=True, slots=True)
class Quantization:
    """AWQ with groups of `group` inputs."""

    group: int
    kept: tuple[str, ...] = ()
    """Parts of names of modules whose weights stay floats."""

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "") -> Quantization | None:
        """From the values of a config.json, None without `quantization_config`; CheckpointError for another kind."""
        stated = values.get("quantization_config")
        if stated is None:
            return None
        where += "config.json quantization_config"
        if not isinstance(stated, dict):
            raise CheckpointError(f"{where} must be an object, got {stated!r}")
        method = stated.get("quant_method")
        if method != AWQ:
            raise CheckpointError(f"{where}.quant_method {method!r} is not supported; supported: {AWQ}")
        version, group = stated.get("version", VERSION), stated.get("group_size", 0)
        wrong = [
            _objection("bits", stated.get("bits"), BITS),
            _objection("zero_point", stated.get("zero_point"), True),
            _objection("version", version.lower() if isinstance(version, str) else version, VERSION),
            ""
            if type(group) is int and group in GROUPS
            else f"group_size {group!r} is not one of {', '.join(map(str, GROUPS))}",
        ]
        if any(wrong):
            raise CheckpointError(f"{where}: " + "; ".join(filter(None, wrong)))
        kept = stated.get("modules_to_not_convert") or []
        if not isinstance(kept, list) or not all(isinstance(name, str) and name for name in kept):
            raise CheckpointError(f"{where}.modules_to_not_convert must be a list of names, got {kept!r}")
        return cls(group, tuple(kept))

    def keeps(self, name: str) -> bool:
        """True when a module of this name stays as it is."""
        return any(part in name for part in self.kept)

    def check(self, names: Iterable[str], where: str = "") -> None:
        """CheckpointError for a projection of a layer whose format is not the one that the configuration states."""
        for name in names:
            module, _, part = name.rpartition(".")
            if part == PARTS[0] and self.keeps(module):
                raise CheckpointError(f"{where}{name} is quantised, but modules_to_not_convert names its module")
            if _IN_A_LAYER.search(name) and not self.keeps(module):
                raise CheckpointError(
                    f"{where}{name} is not quantised and modules_to_not_convert does not name its module: "
                    f"expected {module}.{PARTS[0]}"
                )
            if part == PARTS[0]:
                self._check_fused(module, where)

    def _check_fused(self, module: str, where: str) -> None:
        """module: a projection that is quantised, so that those computed with it must be."""
        stem, _, own = module.rpartition(".")
        for group in (group for group in FUSED if own in group):
            floats = [f"{stem}.{name}" for name in group if self.keeps(f"{stem}.{name}")]
            if floats:
                raise CheckpointError(
                    f"{where}{floats[0]}.weight: expected {floats[0]}.{PARTS[0]}, since {own} is quantised "
                    f"and {', '.join(group)} are computed as one: modules_to_not_convert must name all or none"
                )

    def weight(
        self, read: Callable[[str], Tensor], where: str, outputs: int, inputs: int, dtype: torch.dtype
    ) -> AwqWeight:
        """A weight [N, E]; CheckpointError names the tensor of another dtype or shape.

        read: a tensor as stored, by the last part of its name. where: in messages, before that part.
        """
        if outputs % PER_WORD or inputs % self.group:
            raise CheckpointError(
                f"{where}{PARTS[0]}: a weight [{outputs}, {inputs}] cannot be divided into words of {PER_WORD} outputs "
                f"and groups of {self.group} inputs"
            )
        groups, words = inputs // self.group, outputs // PER_WORD
        expected = {
            "qweight": (torch.int32, (inputs, words)),
            "qzeros": (torch.int32, (groups, words)),
            "scales": (torch.float16, (groups, outputs)),
        }
        tensors = {}
        for part, (kind, shape) in expected.items():
            tensors[part] = tensor = read(part)
            if (tensor.dtype, tuple(tensor.shape)) != (kind, shape):
                raise CheckpointError(
                    f"{where}{part} is {_tensor_text(tensor.dtype, tensor.shape)}, expected {_tensor_text(kind, shape)}"
                )
        return AwqWeight.of_gemm(**tensors, dtype=dtype)


def quantised_bytes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The memory of an `AwqWeight`'s tensors in bytes, by the names of the stored tensors among these.

    shapes: as stored, by name. A zero point, of which a stored word has eight, takes a byte in memory.
    """
    sizes = dict(zip(PARTS, (torch.int32.itemsize, PER_WORD, torch.float16.itemsize), strict=True))
    found = {}
    for name, shape in shapes.items():
        module, _, part = name.rpartition(".")
        if part in sizes and f"{module}.{PARTS[0]}" in shapes:
            found[name] = sizes[part] * math.prod(shape)
    return found


def read_quantization(directory: Path) -> Quantization | None:
    """The quantisation of a checkpoint directory; None for one of floats."""
    return Quantization.of(read_json(directory / "config.json", required=False), f"{directory}: ")


def reject_conversion(directory: Path, weights: str, key: str) -> None:
    """Raise ConfigError where a checkpoint in 4 bits is to be converted. key: the setting that asks for it."""
    if weights not in ("float", "auto") and read_quantization(directory) is not None:
        raise ConfigError(f"{key}: {weights}: the weights of {directory} are in 4 bits already")


def _objection(name: str, found: object, wanted: object) -> str:
    return "" if found == wanted else f"{name} {found!r} is not supported; supported: {wanted!r}"


def _tensor_text(dtype: torch.dtype, shape: Iterable[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
