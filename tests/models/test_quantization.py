"""Checkpoints in 4 bits: what is read as it is stored, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from edgeflow.models.checkpoint import Weights
from edgeflow.models.quantization import Quantization, reject_conversion
from edgeflow.text.weight_files import SINGLE_FILE
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.kernels.awq_weights import random_gemm

NAME = "model.layers.0.mlp.up_proj"
KEPT = "model.layers.1.mlp.up_proj"
GROUP = 32
STATED = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}


def write(directory: Path, change: Mapping[str, Any] | None = None, tensors: Mapping[str, Any] | None = None) -> Path:
    """A checkpoint of one quantised projection [16, 64] and one of floats, with entries changed; None removes."""
    stated = {**STATED, "modules_to_not_convert": ["layers.1."], **(change or {})}
    quantised = zip(("qweight", "qzeros", "scales"), random_gemm(16, 64, GROUP), strict=True)
    named = {f"{NAME}.{part}": tensor for part, tensor in quantised}
    named |= {f"{KEPT}.weight": torch.ones(16, 64), "lm_head.weight": torch.ones(4, 16), **(tensors or {})}
    save_file({name: tensor for name, tensor in named.items() if tensor is not None}, directory / SINGLE_FILE)
    (directory / "config.json").write_text(json.dumps({"quantization_config": stated}))
    return directory


def opened(directory: Path) -> Weights:
    return Weights(directory, torch.bfloat16, torch.device("cpu"))


def test_a_projection_is_read_in_the_format_that_it_has(tmp_path: Path):
    weights = opened(write(tmp_path))
    weight = weights.under("model.layers.0.").linear("mlp.up_proj", 16, 64)
    assert (weight.format, weight.shape, weight.dtype) == ("awq", (16, 64), torch.bfloat16)
    assert weights.linear(KEPT, 16, 64).format == "float" and weights.linear("lm_head", 4, 16).format == "float"
    assert weights.to(torch.float32).linear(NAME, 16, 64).dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "gptq"}, "quant_method 'gptq' is not supported; supported: awq"),
        ({"version": "gemv"}, "version 'gemv' is not supported; supported: 'gemm'"),
        ({"bits": 8}, "bits 8 is not supported; supported: 4"),
        ({"zero_point": False}, "zero_point False"),
        ({"group_size": -1}, "group_size -1 is not one of 32, 64, 128"),
        ({"group_size": "64"}, "group_size '64'"),
        ({"modules_to_not_convert": "visual"}, "modules_to_not_convert must be a list of names"),
        ({"modules_to_not_convert": None}, rf"{KEPT}.weight is not quantised and .* expected {KEPT}.qweight"),
        ({"modules_to_not_convert": ["layers."]}, f"{NAME}.qweight is quantised, but modules_to_not_convert names"),
    ],
)
def test_another_quantisation_is_rejected(tmp_path: Path, change: Mapping[str, Any], message: str):
    with pytest.raises(CheckpointError, match=message):
        opened(write(tmp_path, change))


def test_projections_that_are_computed_as_one_are_quantised_together(tmp_path: Path):
    gate = {f"{NAME.replace('up', 'gate')}.weight": torch.ones(16, 64)}
    directory = write(tmp_path, {"modules_to_not_convert": ["gate_proj", "layers.1."]}, gate)
    with pytest.raises(CheckpointError, match=r"0.mlp.gate_proj.weight: expected .*gate_proj.qweight, since"):
        opened(directory)


def test_a_checkpoint_in_4_bits_is_not_converted(tmp_path: Path):
    reject_conversion(write(tmp_path), "float", "weights")
    with pytest.raises(ConfigError, match=r"weights: fp8: the weights of .* are in 4 bits already"):
        reject_conversion(tmp_path, "fp8", "weights")
    (tmp_path / "config.json").write_text("{}")
    reject_conversion(tmp_path, "fp8", "weights")


@pytest.mark.parametrize(
    ("change", "tensors", "shape", "message"),
    [
        (
            {},
            {"qweight": torch.zeros(32, 2, dtype=torch.int32)},
            (16, 64),
            r"qweight is int32 \[32, 2\], expected .*64",
        ),
        ({}, {"qzeros": torch.zeros(2, 2)}, (16, 64), r"qzeros is float32 \[2, 2\], expected int32 \[2, 2\]"),
        ({}, {"scales": torch.zeros(2, 16)}, (16, 64), r"scales is float32 .* expected float16 \[2, 16\]"),
        ({}, {"scales": None}, (16, 64), r"up_proj.scales is missing"),
        ({"group_size": 64}, {}, (16, 64), r"qzeros is int32 \[2, 2\], expected int32 \[1, 2\]"),
        (
            {"group_size": 128},
            {},
            (16, 64),
            r"cannot be divided into words of 8 outputs and groups of 128",
        ),
        ({}, {}, (8, 64), r"qweight is int32 \[64, 2\], expected int32 \[64, 1\]"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    tmp_path: Path, change: Mapping[str, Any], tensors: Mapping[str, Any], shape: tuple[int, int], message: str
):
    weights = opened(write(tmp_path, change, {f"{NAME}.{part}": tensor for part, tensor in tensors.items()}))
    with pytest.raises(CheckpointError, match=message):
        weights.linear(NAME, *shape)


def test_quantised_tensors_need_a_configuration_that_states_them(tmp_path: Path):
    (write(tmp_path) / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=rf"{NAME}.qweight is quantised, but config.json has no quantization"):
        opened(tmp_path).linear(NAME, 16, 64)
    assert Quantization.of({}) is None
    with pytest.raises(CheckpointError, match="must be an object"):
        Quantization.of({"quantization_config": 4})
