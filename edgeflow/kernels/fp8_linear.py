"""LINEAR with weights and rows in FP8 (kernels/fp8.py): one scale per output of the weight, one per row.

The operands are half as many bytes as in bfloat16, and the units that multiply them are twice as fast.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels import fp8
from edgeflow.kernels.fp8 import QuantiseRows
from edgeflow.kernels.weights import Fp8Weight

LEAST_TORCH = (2, 7)  # the first whose GEMM with one scale per row runs on sm_89


class Fp8:
    """One FP8 GEMM that applies the scales and the bias. CUDA from sm_89, sizes in multiples of 16, bfloat16."""

    def __init__(self, weight: Fp8Weight, bias: Tensor | None, quantise: QuantiseRows = fp8.reference) -> None:
        self._weight = weight.values.t()  # the GEMM reads the weight column by column
        self._scale = weight.scale.unsqueeze(0)
        self._bias = bias
        self._quantise = quantise
        self._dtype = weight.dtype

    def __call__(self, x: Tensor) -> Tensor:
        rows, scale = self._quantise(x)
        out: Tensor = torch._scaled_mm(
            rows, self._weight, scale, self._scale, bias=self._bias, out_dtype=self._dtype, use_fast_accum=True
        )
        return out

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes + self._scale.nbytes


class Emulated:
    """The same numbers by a plain GEMM: shows on any machine what FP8 costs in accuracy, and saves no time."""

    def __init__(self, weight: Fp8Weight, bias: Tensor | None) -> None:
        self._weight = weight.floats()
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        rows = fp8.dequantised(*fp8.reference(x)).to(x.dtype)
        return F.linear(rows, self._weight, self._bias)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes


def missing() -> str:
    """The feature that this build of torch lacks; "" when it lacks nothing."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return "" if version >= LEAST_TORCH else f"needs torch {LEAST_TORCH[0]}.{LEAST_TORCH[1]}"
