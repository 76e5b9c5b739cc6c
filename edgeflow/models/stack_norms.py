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

from edgeflow.kernels.row_operators import AddAdaptiveNorm, AddRmsNorm, RmsNorm
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
class RowTimes:
    """Numbers of the flow times of rows, as a step reads them."""

    table: Tensor
    """[m, ...] float32: the result of `FlowNetwork.time_table` for m times. Adaptive norms read [m, 2 L + 1, 3, E]: of
    every norm, the gate of what is added before it, factor and shift (`StackNorms.modulation`).
    """
    of_row: Tensor
    """[n, H], of adaptive norms [L_S], int64: the index of each row's time."""


Find = Callable[[str, str, torch.dtype], Any]
"""(operator, role, dtype) → the function that the operator table has for it"""


class StackNorms:
    """The norms of a stack by number: two of each layer, then the final one.

    names: published ones, in this order. Weights of adaptive ones are read when the numbers of conditions are computed,
    once for all passes.
    """

    def __init__(self, sizes: StackSizes, weights: Weights, names: Sequence[str], find: Find) -> None:
        self._eps = sizes.eps
        stored = weights.to(torch.float32) if sizes.plus_one or sizes.adaptive else weights
        self._dense = [stored.under(f"{name}.dense.") for name in names] if sizes.adaptive else None
        if self._dense is not None:
            for dense in self._dense:
                dense.check("weight", 3 * sizes.width, sizes.width)
                dense.check("bias", 3 * sizes.width)
            self._adaptive: AddAdaptiveNorm = find("add_adaptive_norm", "input", weights.dtype)
            return
        plain = torch.stack([stored.take(f"{name}.weight", sizes.width) for name in names])
        self._weights = plain + 1 if sizes.plus_one else plain
        self._norm: RmsNorm = find("rms_norm", "input", stored.dtype)
        self._add_norm: AddRmsNorm = find("add_rms_norm", "input", stored.dtype)

    def modulation(self, conditions: Tensor) -> Tensor:
        """Conditions [m, E] → the table of `RowTimes`. Scales are stored less one. A published gate scales the
        sub-layer after its norm, so the table stores it with the next norm.
        """
        found = []
        for dense in self._dense or ():
            numbers = F.linear(conditions.float(), dense["weight"], dense["bias"])
            scale, shift, gate = numbers.chunk(3, dim=1)
            found.append(torch.stack([gate, scale + 1, shift], dim=1))
        table = torch.stack(found, dim=1)
        table[:, :, 0] = table[:, :, 0].roll(1, dims=1)
        return table

    def __call__(
        self, index: int, added: Tensor | None, residual: Tensor, condition: RowTimes | None
    ) -> tuple[Tensor, Tensor]:
        """The norm of residual + added, and the sum; both inputs are given away. ValueError for adaptive norms without
        a condition.
        """
        if self._dense is not None:
            if condition is None:
                raise ValueError("the norms of this stack need a condition")
            return self._adaptive(added, residual, condition.table[:, index], condition.of_row, self._eps)
        weight = self._weights[index]
        if added is None:
            return self._norm(residual, weight, self._eps), residual
        return self._add_norm(added, residual, weight, self._eps)


class ResidualRows:
    """The rows of one stack in a pass: the output of a sub-layer waits for the norm that adds it."""

    def __init__(self, norms: StackNorms, hidden: Tensor, condition: RowTimes | None) -> None:
        self.count = len(hidden)
        self._norms = norms
        self._condition = condition
        self._residual = hidden
        self._added: Tensor | None = None
        self._next = 0

    def normed(self) -> Tensor:
        """The input of the next sub-layer, or of the head after the last one."""
        x, self._residual = self._norms(self._next, self._added, self._residual, self._condition)
        self._next += 1
        return x

    def add(self, x: Tensor) -> None:
        """Take the output of a sub-layer."""
        self._added = x
