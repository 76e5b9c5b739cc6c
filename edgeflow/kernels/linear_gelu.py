"""A linear with a GELU behind it: gelu(x weight^T + bias), as the MLPs of vision towers begin.

Which one serves follows from the device and the dtype, so it is not in the operator table.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.linear import Gemm, Linear, packed_dtypes
from edgeflow.kernels.weights import FloatWeight, Weight


class GemmGelu:
    """A GEMM, then torch's GELU. approximate: as torch has it, none or tanh."""

    def __init__(self, weight: Weight, bias: Tensor | None, approximate: str) -> None:
        self._linear = Gemm(weight, bias)
        self._approximate = approximate

    def __call__(self, x: Tensor) -> Tensor:
        return F.gelu(self._linear(x), approximate=self._approximate)

    @property
    def nbytes(self) -> int:
        return self._linear.nbytes


class PackedGelu:
    """oneDNN's GEMM over a packed weight, which applies the GELU to its sums before they are rounded."""

    ROWS = 1024  # that the blocks are laid out for

    def __init__(self, weight: Weight, bias: Tensor | None, approximate: str) -> None:
        values = weight.floats().contiguous()
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(values, self.ROWS)
        self._bias = bias
        self._approximate = approximate
        self._bytes = values.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x, self._weight, self._bias, "gelu", [], self._approximate
        )
        return out

    @property
    def nbytes(self) -> int:
        return self._bytes


def linear_gelu(weight: Weight, bias: Tensor | None, approximate: str) -> Linear:
    """What serves a float weight on its device."""
    packs = isinstance(weight, FloatWeight) and weight.device.type == "cpu" and weight.dtype in packed_dtypes()
    return PackedGelu(weight, bias, approximate) if packs else GemmGelu(weight, bias, approximate)
