"""The model in the form that each system reads: all of them are rounded to nearest from the same random numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.chat.systems import write_checkpoint, write_gguf
from edgeflow.kernels.awq import AwqWeight

PROJECTION = re.compile(r"layers\.\d+\..*_proj\.weight$")


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The same weights as each system reads them."""

    floats: Path
    halves: Path
    """Both: safetensors, in float32 and bfloat16."""
    awq: Path
    """In 4 bits."""
    q4_0: Path | None
    f16: Path | None
    """Both: GGUF files; None without an interpreter that can write them."""


def write_all(folder: Path, group: int, python: Path | None) -> Checkpoints:
    """Write what is not there yet. group: G of the 4-bit checkpoint. python: with gguf and safetensors."""
    made = Checkpoints(
        folder / "float",
        folder / "bfloat16",
        folder / f"awq-{group}",
        folder / "q4_0.gguf" if python else None,
        folder / "f16" / "model.gguf" if python else None,
    )
    if not (made.floats / "config.json").is_file():
        write_checkpoint(made.floats)
    if not (made.halves / "config.json").is_file():
        _write(made.halves, _tensors(made.floats, torch.bfloat16), _config(made.floats, torch.bfloat16))
    if not (made.awq / "config.json").is_file():
        _write_awq(made.floats, made.awq, group)
    for path, kind in ((made.q4_0, "Q4_0"), (made.f16, "F16")):
        if python and path and not path.is_file():
            path.parent.mkdir(exist_ok=True)
            write_gguf(python, made.floats, path, kind)
    return made


def _write_awq(source: Path, out: Path, group: int) -> None:
    """Projections in 4 bits as AutoAWQ stores them, all else in float16."""
    tensors = {name: tensor for name, tensor in _tensors(source, torch.float16).items() if not PROJECTION.search(name)}
    for name, tensor in _tensors(source, torch.float32).items():
        if PROJECTION.search(name):
            parts = zip(("qweight", "qzeros", "scales"), AwqWeight.nearest(tensor, group).gemm(), strict=True)
            tensors |= {f"{name.removesuffix('weight')}{part}": value for part, value in parts}
    stated = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    _write(out, tensors, _config(source, torch.float16) | {"quantization_config": stated})


def _tensors(source: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.to(dtype) for name, tensor in load_file(source / "model.safetensors").items()}


def _config(source: Path, dtype: torch.dtype) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((source / "config.json").read_text())
    return values | {"torch_dtype": str(dtype).removeprefix("torch.")}


def _write(out: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """The configuration last: where it is, the tensors are complete."""
    out.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(config, indent=2))
