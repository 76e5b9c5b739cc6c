"""LINEAR with torch's product of float rows and weights of 8 bits. CPU only."""

from __future__ import annotations

import torch
from torch import Tensor

from edgeflow.kernels.weights import Int8Weight


class TorchInt8:
    """The weight as it lies, with its scales in the dtype it computes in."""

    def __init__(self, weight: Int8Weight, bias: Tensor | None) -> None:
        self._values, self._scale = weight.values, weight.scale.to(weight.dtype)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.aten._weight_int8pack_mm(x.contiguous(), self._values, self._scale)
        return out if self._bias is None else out.add_(self._bias)

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + self._scale.nbytes


def missing() -> str:
    """The reason why torch lacks the product; "" where it has it."""
    return "" if hasattr(torch.ops.aten, "_weight_int8pack_mm") else "this torch has no product of 8 bits"
