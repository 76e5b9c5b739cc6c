"""LINEAR: rows times a weight. An implementation is made once for a weight and then called by every pass.

make(weight [N, E], bias [N] or None) → linear(x [m, E], residual [m, N] or None) → [m, N]: x weight^T + bias + residual
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Linear(Protocol):
    """Bound to its weight."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor: ...

    @property
    def nbytes(self) -> int:
        """Memory of the weight in the forms that are used."""
        ...


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


class Gemm:
    """One GEMM over the weight as it lies; a residual is added inside it."""

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


class Packed:
    """The weight reordered once into the blocks that oneDNN's GEMM reads. A CPU; `packed_dtypes`.

    Few rows of a small float32 weight, which stays in the cache, meet it as it lies: that call alone costs less.
    """

    ROWS = 64  # that the blocks are laid out for: serves a single row as well as hundreds
    FEW = 4
    SMALL = 1 << 20  # numbers

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        small = weight.dtype == torch.float32 and weight.numel() <= self.SMALL
        self._few = Gemm(weight, bias) if small else None
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), self.ROWS)
        self._bias = bias
        self._bytes = weight.nbytes * (2 if small else 1)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if self._few is not None and x.shape[0] <= self.FEW:
            return self._few(x, residual)
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self._weight, self._bias, "none", [], "")
        return out if residual is None else out.add_(residual)

    @property
    def nbytes(self) -> int:
        return self._bytes


class Int8:
    """8-bit weights (symmetric, a scale an output) meet a row in 8 bits (one scale): a quarter or half of the bytes
    that a single row waits for. A CPU; the table gives it one row."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed = _quantised(weight.float(), None if bias is None else bias.float())
        self._bytes = weight.numel()

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out: Tensor = torch.ops.quantized.linear_dynamic(x.float(), self._packed, False).to(x.dtype)
        return out if residual is None else out.add_(residual)

    @property
    def nbytes(self) -> int:
        return self._bytes


class ByRows:
    """Several implementations of one weight. by_class: for 1 row, up to 2, 4, 8, ..; the last serves all beyond."""

    def __init__(self, by_class: Sequence[Linear]) -> None:
        self._by_class = tuple(by_class)
        self._last = len(by_class) - 1

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self._by_class[min((x.shape[0] - 1).bit_length(), self._last)](x, residual)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in set(self._by_class))


def packed_dtypes() -> frozenset[torch.dtype]:
    """What oneDNN multiplies on this CPU."""
    halves = not no_onednn() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return frozenset({torch.float32, torch.bfloat16} if halves else {torch.float32})


def no_onednn() -> str:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return "" if available else "torch was built without oneDNN"


def _quantised(weight: Tensor, bias: Tensor | None) -> torch.ScriptObject:
    scale = weight.abs().amax(dim=1).clamp_(min=1e-8).div_(127)
    zero = torch.zeros(len(scale), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the format is deprecated; the operator that reads it is what is fast
        quantized = torch.quantize_per_channel(weight, scale.double(), zero, 0, torch.qint8)
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(quantized, bias)
    return packed
