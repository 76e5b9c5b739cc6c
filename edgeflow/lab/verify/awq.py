"""Checks of single projections of an AWQ checkpoint against outputs that AutoAWQ recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from edgeflow.kernels.linear import Reference
from edgeflow.lab.verify.recorded.comparison import FEATURE_TOLERANCE, CheckResult, compare
from edgeflow.models.checkpoint import Weights, read_tensors

LINEARS_FILE = "expected_linears.safetensors"
MODE = "projections"


def check_linears(directory: Path, device: torch.device) -> Iterator[tuple[str, CheckResult]]:
    """Dequantised weights, to the bit, and outputs in float32; nothing where the bundle has recorded none."""
    if not (directory / LINEARS_FILE).is_file():
        return
    recorded, weights = read_tensors(directory / LINEARS_FILE), Weights(directory, torch.float32, device)
    for name in sorted({each.rpartition(".")[0] for each in recorded}):
        dequantised = recorded[f"{name}.dequantized_in_out"].t().float()
        weight = weights.linear(name, *dequantised.shape)
        biased = f"{name}.bias" in weights
        found = Reference(weight, weights[f"{name}.bias"] if biased else None)(recorded[f"{name}.x"].float().to(device))
        yield MODE, compare(name, "dequantised weight", weight.floats(), dequantised, 0)
        yield MODE, compare(name, "output", found, recorded[f"{name}.y_fp32"], FEATURE_TOLERANCE)
