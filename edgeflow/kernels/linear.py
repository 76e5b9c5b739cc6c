"""LINEAR: rows times a weight. An implementation is made once for a weight and then called by every pass.

make(weight [N, M], bias [N] or None) → linear(x [n, M], residual [n, N] or None) → [n, N]: x weight^T + bias + residual
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Linear(Protocol):
    """Bound to its weight."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor: ...

    @property
    def nbytes(self) -> int:
        """Memory of the weight in all its forms."""
        ...


MakeLinear = Callable[[Tensor, "Tensor | None"], Linear]


class Reference:
    """The formula."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out = x @ self._weight.t()
        out = out if self._bias is None else out + self._bias
        return out if residual is None else residual + out

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes


class Float:
    """One GEMM; a residual is added inside it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if residual is not None and self._bias is None:
            return torch.addmm(residual, x, self._weight.t())
        out = F.linear(x, self._weight, self._bias)
        return out if residual is None else out.add_(residual)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes


class Int8OneRow:
    """A single row meets 8-bit weights (symmetric, a scale an output) with its values in 8 bits (a scale a row); more
    rows meet the weight as it was given. One row is bound by the bytes of the weight, which become 4 or 2 times fewer.

    Needs a CPU; x in float32 or bfloat16.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._many = Float(weight, bias)
        self._packed = _packed(weight.float(), None if bias is None else bias.float())
        self._bytes = weight.nbytes + weight.numel()

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if x.shape[0] != 1:
            return self._many(x, residual)
        out: Tensor = torch.ops.quantized.linear_dynamic(x.float(), self._packed, False).to(x.dtype)
        return out if residual is None else out.add_(residual)

    @property
    def nbytes(self) -> int:
        return self._bytes


def _packed(weight: Tensor, bias: Tensor | None) -> torch.ScriptObject:
    scale = weight.abs().amax(dim=1).clamp_(min=1e-8).div_(127)
    zero = torch.zeros(len(scale), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the format is deprecated; the operator that reads it is what is fast
        quantized = torch.quantize_per_channel(weight, scale.double(), zero, 0, torch.qint8)
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(quantized, bias)
    return packed
