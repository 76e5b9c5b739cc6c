"""The norms of a decoder stack whose rows share passes with those of another, and the residual that they follow.

Gemma's norms are stored less one and computed in float32 whatever the dtype of the rows, and so are adaptive ones,
which take scale, shift and gate from a condition of each row instead of a weight (π0.5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.row_operators import AddRmsNorm, RmsNorm
from edgeflow.models.checkpoint import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSizes:
    """The sizes of one stack."""

    width: int
    """E, the width of the stack."""
    inner: int
    """F, the width of its MLPs."""
    eps: float
    gelu: bool = False
    """True where the gate of the MLP is a GELU, not a SiLU."""
    plus_one: bool = False
    """True where norms are stored less one (Gemma)."""
    adaptive: bool = False
    """True where norms take scale, shift and gate from a condition of each row instead of a weight (π0.5)."""


@dataclass(frozen=True, slots=True)
class NormCondition:
    """The source of the numbers of adaptive norms."""

    values: Tensor
    """[n, E]: the different conditions."""
    of_row: Tensor
    """[L_S] int64: the index of each suffix row's condition."""


Find = Callable[[str, str, torch.dtype], Any]
"""(operator, role, dtype) → the function that the operator table has for it"""


@dataclass(frozen=True, slots=True)
class Modulation:
    """The numbers of a pass for adaptive norms."""

    values: Tensor
    """[2 N + 1, 3, n, E] float32: factor, shift and gate of every norm for each condition."""
    of_row: Tensor
    """[L_S] int64: the index of each row's condition."""

    def part(self, norm: int, part: int) -> Tensor:
        """Factor, shift or gate of a norm for each row: [L_S, E]"""
        return self.values[norm, part].index_select(0, self.of_row)


class StackNorms:
    """The norms of a stack by number: two of each layer, then the final one.

    names: published ones, in this order.
    """

    def __init__(self, sizes: StackSizes, weights: Weights, names: Sequence[str], find: Find) -> None:
        self._width, self._eps, self._dtype = sizes.width, sizes.eps, weights.dtype
        in_float32 = sizes.plus_one or sizes.adaptive
        stored = weights.to(torch.float32) if in_float32 else weights
        self._dense = self._read_dense(stored, names) if sizes.adaptive else None
        if self._dense is not None:
            self._weights = torch.ones(len(names), sizes.width, device=weights.device)
        else:
            plain = torch.stack([stored.take(f"{name}.weight", sizes.width) for name in names])
            self._weights = plain + 1 if sizes.plus_one else plain
        self._wide = self._weights.dtype != weights.dtype
        self._norm: RmsNorm = find("rms_norm", "input", self._weights.dtype)
        self._add_norm: AddRmsNorm = find("add_rms_norm", "input", self._weights.dtype)

    def _read_dense(self, weights: Weights, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The projections of all adaptive norms, one after the other: [(2 N + 1) 3E, E] and bias.

        Scales are stored less one, so the bias of each has one more.
        """
        width = self._width
        dense = [weights.take(f"{name}.dense.weight", 3 * width, width) for name in names]
        bias = [weights.take(f"{name}.dense.bias", 3 * width) for name in names]
        biases = torch.stack(bias).view(len(names), 3, width)
        biases[:, 0] += 1
        return torch.cat(dense), biases.flatten()

    def modulation(self, condition: NormCondition | None) -> Modulation | None:
        """The numbers of a pass; None where norms are not adaptive. ValueError where they are and have no condition."""
        if self._dense is None:
            return None
        if condition is None:
            raise ValueError("the norms of this stack need a condition")
        numbers = F.linear(condition.values.float(), *self._dense)
        numbers = numbers.view(-1, len(self._weights), 3, self._width).permute(1, 2, 0, 3)
        return Modulation(numbers, condition.of_row)

    def __call__(
        self, index: int, added: Tensor | None, residual: Tensor, modulation: Modulation | None
    ) -> tuple[Tensor, Tensor]:
        """The norm of residual + added, and the sum; both inputs are given away."""
        weight = self._weights[index]
        if added is not None and not self._wide:
            x, residual = self._add_norm(added, residual, weight, self._eps)
        else:
            residual = residual if added is None else residual.add_(added)
            x = self._norm(residual.to(weight.dtype), weight, self._eps)
        if modulation is not None:
            x = torch.addcmul(modulation.part(index, 1), x, modulation.part(index, 0))
        return x.to(self._dtype), residual


class ResidualRows:
    """The rows of one stack in a pass: the output of a sub-layer waits for the norm that adds it."""

    def __init__(self, norms: StackNorms, hidden: Tensor, condition: NormCondition | None) -> None:
        self.count = len(hidden)
        self._norms = norms
        self._modulation = norms.modulation(condition) if self.count else None
        self._residual = hidden.clone()
        self._added: Tensor | None = None
        self._next = 0

    def normed(self) -> Tensor:
        """The input of the next sub-layer, or of the head after the last one."""
        x, self._residual = self._norms(self._next, self._added, self._residual, self._modulation)
        self._next += 1
        return x

    def add(self, x: Tensor) -> None:
        """Take the output of a sub-layer; adaptive norms scale it by the gate of the norm before it."""
        self._added = x if self._modulation is None else x * self._modulation.part(self._next - 1, 2).to(x.dtype)
