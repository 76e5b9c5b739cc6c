"""LINEAR with torch's product of float rows and weights of 4 bits. CPU only."""

from __future__ import annotations

import torch
from torch import Tensor

from edgeflow.kernels.awq import AwqWeight

MIDDLE = 8
"""The code that torch takes for 0, before it adds a group's zero."""
INNER_TILES = 2  # an argument of GPUs, which the packing for CPUs asks for and does not read


class TorchInt4:
    """W = (q - 8) * s + (8 - z) * s, with scales and zeros [E / G, N, 2] in the dtype it computes in."""

    def __init__(self, weight: AwqWeight, bias: Tensor | None) -> None:
        self._packed: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight.q.to(torch.int32), INNER_TILES)
        scales = weight.scales.float()
        zeros = (MIDDLE - weight.zeros.float()) * scales
        self._scales_and_zeros = torch.stack([scales, zeros], -1).transpose(0, 1).to(weight.dtype).contiguous()
        self._group = weight.group
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.contiguous(), self._packed, self._group, self._scales_and_zeros
        )
        return out if self._bias is None else out.add_(self._bias)

    @property
    def nbytes(self) -> int:
        return self._packed.nbytes + self._scales_and_zeros.nbytes


def missing() -> str:
    """The reason why torch lacks the product; "" where it has it."""
    return "" if hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu") else "this torch has no product of 4 bits"
