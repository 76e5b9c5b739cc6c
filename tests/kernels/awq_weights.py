"""Random weights of 4 bits for tests."""

from __future__ import annotations

import torch

from edgeflow.kernels.awq import AwqWeight

Gemm = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def random_gemm(outputs: int, inputs: int, group: int, seed: int = 0) -> Gemm:
    """qweight, qzeros, scales as a checkpoint holds them, every code and zero point as likely."""
    generator = torch.Generator().manual_seed(seed)

    def words(rows: int) -> torch.Tensor:
        drawn = torch.randint(-(1 << 31), 1 << 31, (rows, outputs // 8), generator=generator)
        return drawn.to(torch.int32)

    scales = torch.rand(inputs // group, outputs, generator=generator) * 0.02 + 0.001
    return words(inputs), words(inputs // group), scales.half()


def random_weight(
    outputs: int, inputs: int, group: int, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> AwqWeight:
    """A weight [N, E]."""
    return AwqWeight.of_gemm(*random_gemm(outputs, inputs, group, seed), dtype)
