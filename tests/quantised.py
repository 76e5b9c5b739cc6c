"""Copies of checkpoints with the projections of their language model in 4 bits, and with what these stand for."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from edgeflow.kernels.awq import AwqWeight

PROJECTION = re.compile(r"layers\.\d+\..*_proj(_with_mqa)?\.weight$")


def quantised_copies(source: Path, folder: Path, decoder: str, kept: list[str], group: int = 32) -> tuple[Path, Path]:
    """A checkpoint in 4 bits, rounded to nearest, and one of floats with the same numbers.

    decoder: the beginning of the names of what is quantised. kept: for `modules_to_not_convert`.
    """
    four, floats = (Path(shutil.copytree(source, folder / name)) for name in ("four", "floats"))
    small, plain = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.startswith(decoder) and PROJECTION.search(name):
            weight = AwqWeight.nearest(tensor.float(), group)
            parts = zip(("qweight", "qzeros", "scales"), weight.gemm(), strict=True)
            small |= {f"{name.removesuffix('weight')}{part}": value for part, value in parts}
            plain[name] = weight.floats()
        else:
            small[name] = plain[name] = tensor
    for directory, tensors in ((four, small), (floats, plain)):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    stated = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    config = json.loads((four / "config.json").read_text())
    config["quantization_config"] = {**stated, "modules_to_not_convert": kept}
    (four / "config.json").write_text(json.dumps(config))
    return four, floats


def share_of(four: torch.Tensor, floats: torch.Tensor) -> float:
    """The largest difference over the largest number."""
    return float((four - floats).abs().max() / floats.abs().max())
