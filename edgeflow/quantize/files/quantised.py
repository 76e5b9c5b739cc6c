"""Quantised tensors of a decoder: 4-bit linears in AutoAWQ's GEMM layout, everything else of the decoder in float16."""

from __future__ import annotations

import torch
from torch import Tensor

from edgeflow.errors import CheckpointError
from edgeflow.kernels.awq import AwqWeight
from edgeflow.models.quantization import PARTS
from edgeflow.quantize.search.arithmetic import integers
from edgeflow.quantize.search.block import LINEARS, Block
from edgeflow.quantize.search.choices import BlockChoice


def quantised_linear(choice: BlockChoice, name: str, weight: Tensor, group: int) -> AwqWeight:
    """The weight [N, E] of a linear with the scales and limits of its block, in 4 bits."""
    found = integers(in_float16(name, choice.linear(name, weight)), group)
    return AwqWeight.of_codes(found.codes, found.scales, found.zeros, torch.float32)


def gemm_tensors(name: str, weight: AwqWeight) -> dict[str, Tensor]:
    """The tensors that a checkpoint holds for a linear, by their names."""
    return {f"{name}.{part}": tensor for part, tensor in zip(PARTS, weight.gemm(), strict=True)}


def in_float16(name: str, values: Tensor) -> Tensor:
    """Values rounded to float16; CheckpointError where one is too large for it or not a number."""
    half = values.to(torch.float16)
    if not half.isfinite().all():
        largest = values.abs().max().item()
        raise CheckpointError(f"{name}: values must be finite and fit float16 (up to 65504), got {largest:.4g}")
    return half


def quantised_block(block: Block, choice: BlockChoice, group: int) -> Block:
    """The block as its quantised tensors compute it, in float32: products rounded to float16, as AutoAWQ dequantises.

    Without choices this is round to nearest.
    """
    return block.with_tensors({name: _computed(block, choice, name, group) for name in block.tensors})


def _computed(block: Block, choice: BlockChoice, name: str, group: int) -> Tensor:
    operation, _, part = name.rpartition(".")
    tensor = block.tensors[name]
    if operation in LINEARS and part == "weight":
        return quantised_linear(choice, operation, tensor, group).floats()
    plus_one = block.shape.plus_one and part == "weight"
    return in_float16(name, choice.vector(operation, tensor, plus_one=plus_one)).float()
