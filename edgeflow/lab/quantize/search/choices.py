"""The choices of the search for a block, and the block's tensors after them: scales folded into neighbours, weights
clamped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from edgeflow.lab.quantize.search.block import DecoderBlock
from edgeflow.lab.quantize.search.clipping import clamped


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GroupChoice:
    """The scales of one scale group."""

    previous: str
    """The operation whose output is divided by the scales."""
    scaled: tuple[str, ...]
    """The linears that read this output."""
    ratio: float | None
    """None for s = 1. scales are [E] float32; losses are [candidates] float64, in the order of `scales.candidates`."""
    scales: Tensor
    losses: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class BlockChoice:
    """All choices of a block."""

    groups: tuple[GroupChoice, ...] = ()
    limits: Mapping[str, Tensor] | None = None
    """Limits of |w| by linear, [N, E/G]; None without clipping."""

    def input_scales(self, linear: str) -> Tensor | None:
        """The scales that the inputs of a linear are divided by, [E]; None for 1."""
        return next((each.scales for each in self.groups if linear in each.scaled), None)

    def output_scales(self, operation: str) -> Tensor | None:
        """The scales that the outputs of a linear or norm are divided by; None for 1."""
        return next((each.scales for each in self.groups if each.previous == operation), None)

    def linear(self, name: str, weight: Tensor) -> Tensor:
        """The weight of a linear as it is quantised: columns multiplied, rows divided, then clamped."""
        weight = self._scaled(name, weight)
        limits = (self.limits or {}).get(name)
        return weight if limits is None else clamped(weight, limits)

    def _scaled(self, name: str, weight: Tensor) -> Tensor:
        into, out = self.input_scales(name), self.output_scales(name)
        weight = weight if into is None else weight * into
        return weight if out is None else weight / out[:, None]

    def vector(self, name: str, values: Tensor, *, plus_one: bool = False) -> Tensor:
        """A norm's weight or a linear's bias, by the name of the operation, divided by its scales.

        plus_one: the norm is stored minus one.
        """
        scales = self.output_scales(name)
        if scales is None:
            return values
        return (values + 1) / scales - 1 if plus_one else values / scales

    def scaled(self, block: DecoderBlock) -> DecoderBlock:
        """The same function as the block, with the scales applied and without limits: equal up to rounding."""
        tensors = {name: self._with(block, name, tensor) for name, tensor in block.tensors.items()}
        return block.with_tensors(tensors)

    def _with(self, block: DecoderBlock, name: str, tensor: Tensor) -> Tensor:
        operation = name.rpartition(".")[0]
        if tensor.dim() == 2:
            return self._scaled(operation, tensor)
        return self.vector(operation, tensor, plus_one=block.shape.plus_one and name.endswith("norm.weight"))
