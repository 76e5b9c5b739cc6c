"""Quantised tensors of a decoder: 4-bit linears in AutoAWQ's GEMM layout, everything else of the decoder in float16."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.kernels.awq import AwqWeight
from edgeflow.lab.quantize.search.block import LINEARS, DecoderBlock
from edgeflow.lab.quantize.search.choices import BlockChoice
from edgeflow.lab.quantize.search.decoder import DecoderTensors
from edgeflow.models.quantization import PARTS
from edgeflow_client.errors import CheckpointError

LARGEST = torch.finfo(torch.float16).max


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Storing:
    """How the tensors of a block are stored."""

    choice: BlockChoice
    group: int
    """G, the inputs per group."""
    plus_one: bool
    """Norms are stored minus one."""
    prefix: str = ""
    """The beginning of their published names."""

    def stored(self, name: str, tensor: Tensor) -> AwqWeight | Tensor:
        """A tensor of the block with the scales and limits of the choice: the weight of a linear in 4 bits, others in
        float16; CheckpointError for numbers that do not fit into float16.

        name: relative to the block; tensor: float32.
        """
        operation, _, part = name.rpartition(".")
        if operation in LINEARS and part == "weight":
            return self._linear(name, self.choice.linear(operation, tensor))
        plus_one = self.plus_one and part == "weight"
        return in_float16(self._full(name), self.choice.vector(operation, tensor, plus_one=plus_one))

    def _linear(self, name: str, weight: Tensor) -> AwqWeight:
        half = in_float16(self._full(name), weight).float()
        found = AwqWeight.nearest(half, self.group)
        if not found.scales.isfinite().all():
            groups = half.view(-1, self.group)
            widest = (groups.amax(1) - groups.amin(1)).max().item()
            raise CheckpointError(
                f"{self._full(name)}: expected weights that differ by at most {LARGEST:.0f} in each group of "
                f"{self.group} inputs, the most that float16 holds, found {widest:.0f}"
            )
        return found

    def _full(self, name: str) -> str:
        return f"{self.prefix}{name}{' with the scales of the search' if self.choice.groups else ''}"


def gemm_tensors(name: str, weight: AwqWeight) -> dict[str, Tensor]:
    """The tensors that a checkpoint stores for a linear, by name."""
    return {f"{name}.{part}": tensor for part, tensor in zip(PARTS, weight.gemm(), strict=True)}


def in_float16(name: str, values: Tensor) -> Tensor:
    """Values rounded to float16; CheckpointError if one is too large or not a number."""
    half = values.to(torch.float16)
    if half.numel() and not torch.stack(half.aminmax()).isfinite().all():
        largest = values.abs().max().item()
        raise CheckpointError(f"{name}: expected numbers that float16 holds (up to {LARGEST:.0f}), found {largest:.4g}")
    return half


def quantised_block(block: DecoderBlock, choice: BlockChoice, group: int) -> DecoderBlock:
    """The block as its quantised tensors compute it, in float32: products rounded to float16, as AutoAWQ dequantises.

    Without choices this is round to nearest.
    """
    storing = Storing(choice=choice, group=group, plus_one=block.shape.plus_one)
    return block.with_tensors({name: _floats(storing.stored(name, each)) for name, each in block.tensors.items()})


def check_block(block: DecoderBlock, choice: BlockChoice, group: int, prefix: str) -> None:
    """Raise CheckpointError if a tensor of a block with its choices does not fit into float16. prefix: as in
    Storing.
    """
    storing = Storing(choice=choice, group=group, plus_one=block.shape.plus_one, prefix=prefix)
    for name, tensor in block.tensors.items():
        storing.stored(name, tensor)


def check_outside(decoder: DecoderTensors) -> None:
    """Raise CheckpointError if the embedding, the final norm or the head of a decoder does not fit into float16."""
    for name in dict.fromkeys((f"{decoder.stem}embed_tokens.weight", f"{decoder.stem}norm.weight", decoder.head)):
        if name in decoder.weights:
            in_float16(name, decoder.weights[name])


def _floats(stored: AwqWeight | Tensor) -> Tensor:
    return stored.floats() if isinstance(stored, AwqWeight) else stored.float()
