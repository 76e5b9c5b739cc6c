"""Weights of 4 bits with a scale and a zero point per group of inputs, as AWQ checkpoints hold them.

W[n, e] = (q[n, e] - z[n, e // G]) * s[n, e // G], q and z from 0 to 15. Checkpoints store the GEMM layout of AutoAWQ
(awq/utils/packing_utils.py), which is packed along the outputs; in memory a weight is packed along the inputs, so that
projections can be concatenated and a row of a product reads its weight from end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from edgeflow.kernels.weights import Weight, alike
from edgeflow_client.errors import CheckpointError

AWQ = "awq"
GROUPS = (32, 64, 128)
"""Group sizes that are served."""
BLOCK = 32
"""Inputs whose codes lie together: byte j of 16 has input j in its low nibble and input 16 + j in its high one."""
PER_WORD = 8
"""Codes of a 32-bit word of the GEMM layout."""
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output that nibble i of a word belongs to, the lowest nibble first."""

LARGEST_CODE = 15
LEAST_RANGE = 1e-5
"""Smallest difference between the weights of a group that counts, so that no scale is 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """A weight [N, E] as integers: q [N, E / G, G], zeros and scales [N, E / G, 1], in the dtype of the weight."""

    q: Tensor
    zeros: Tensor
    scales: Tensor

    @property
    def values(self) -> Tensor:
        """The numbers that the codes stand for: [N, E]"""
        return (self.q - self.zeros).mul_(self.scales).flatten(1)


def rounded(weight: Tensor, group: int) -> Codes:
    """A weight [N, E] rounded to nearest (AutoAWQ's formula), every operation in the dtype of the weight.

    Per group: scale = max(max - min, 1e-5) / 15; zero = clamp(-round(min / scale), 0, 15); q = clamp(round(w / scale) +
    zero, 0, 15). Rounding is half to even. Checkpoints hold what float16 gives (`AwqWeight.nearest`); a search in
    float32 tries what float32 gives, whose scales and codes can differ by a rounding.
    """
    groups = weight.reshape(len(weight), -1, group)
    most, least = groups.amax(2, keepdim=True), groups.amin(2, keepdim=True)
    scales = (most - least).clamp_(min=LEAST_RANGE) / LARGEST_CODE
    zeros = (-torch.round(least / scales)).clamp_(0, LARGEST_CODE)
    q = torch.div(groups, scales).round_().add_(zeros).clamp_(0, LARGEST_CODE)
    return Codes(q, zeros, scales)


@dataclass(frozen=True, slots=True, eq=False)
class AwqWeight:
    """codes uint8 [N, E / 2], scales float16 [N, E / G], zeros uint8 [N, E / G]."""

    format: ClassVar[str] = AWQ
    codes: Tensor
    scales: Tensor
    zeros: Tensor
    dtype: torch.dtype
    """The dtype of products."""

    @classmethod
    def of_gemm(cls, qweight: Tensor, qzeros: Tensor, scales: Tensor, dtype: torch.dtype) -> AwqWeight:
        """Read the GEMM layout: int32 [E, N / 8], int32 [E / G, N / 8], float16 [E / G, N]."""
        return cls.of_codes(unpacked(qweight).t(), scales.t().contiguous(), unpacked(qzeros).t().contiguous(), dtype)

    @classmethod
    def of_codes(cls, q: Tensor, scales: Tensor, zeros: Tensor, dtype: torch.dtype) -> AwqWeight:
        """From codes uint8 [N, E], one per byte; the others as they are kept."""
        low, high = q.reshape(len(q), -1, 2, BLOCK // 2).unbind(2)
        return cls((low | high << 4).flatten(1), scales, zeros, dtype)

    @classmethod
    def nearest(cls, floats: Tensor, group: int) -> AwqWeight:
        """A float weight [N, E] rounded to nearest in float16, as AutoAWQ stores it (see `rounded`).

        AutoAWQ computes the codes a second time from the dequantised float16 weight. That gives the same codes.
        """
        found = rounded(floats.half(), group)
        q, zeros = (each.to(torch.uint8).flatten(1) for each in (found.q, found.zeros))
        return cls.of_codes(q, found.scales.flatten(1), zeros, floats.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], 2 * self.codes.shape[1]

    @property
    def group(self) -> int:
        """G, inputs that share a scale and a zero point."""
        return self.shape[1] // self.scales.shape[1]

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.zeros.nbytes

    @property
    def q(self) -> Tensor:
        """Codes uint8 [N, E], one per byte."""
        blocks = self.codes.view(len(self.codes), -1, BLOCK // 2)
        return torch.stack([blocks & 15, blocks >> 4], 2).flatten(1)

    def cat(self, others: Sequence[Weight]) -> AwqWeight:
        fused = alike(self, others)
        groups = {each.group for each in fused}
        if len(groups) > 1:
            raise CheckpointError(f"projections that are computed as one have groups of several sizes: {groups}")
        parts = zip(*((each.codes, each.scales, each.zeros) for each in fused), strict=True)
        codes, scales, zeros = (torch.cat(part) for part in parts)
        return AwqWeight(codes, scales, zeros, self.dtype)

    def exact(self) -> Tensor:
        """[N, E] float32: the product of a code and its scale, which float32 holds without rounding."""
        steps = self.q.view(len(self.codes), -1, self.group).float()
        return steps.sub_(self.zeros.unsqueeze(2)).mul_(self.scales.float().unsqueeze(2)).flatten(1)

    def floats(self) -> Tensor:
        """[N, E] in `dtype`. Each product is rounded to float16 first, as AutoAWQ dequantises."""
        return self.exact().half().to(self.dtype)

    def gemm(self) -> tuple[Tensor, Tensor, Tensor]:
        """qweight, qzeros, scales in the layout that `of_gemm` reads."""
        return packed(self.q.t()), packed(self.zeros.t()), self.scales.t().contiguous()


def unpacked(words: Tensor) -> Tensor:
    """int32 [n, N / 8] → codes uint8 [n, N]"""
    shifts = torch.arange(0, 4 * PER_WORD, 4, dtype=torch.int32, device=words.device)
    nibbles = ((words.unsqueeze(2) >> shifts) & 15).to(torch.uint8)
    return nibbles[..., sorted(range(PER_WORD), key=ORDER.__getitem__)].flatten(1)


def packed(codes: Tensor) -> Tensor:
    """Codes uint8 [n, N] → int32 [n, N / 8]"""
    nibbles = codes.reshape(len(codes), -1, PER_WORD)[..., list(ORDER)].to(torch.int64)
    words = (nibbles << torch.arange(0, 4 * PER_WORD, 4, device=codes.device)).sum(-1)
    return torch.where(words < 1 << 31, words, words - (1 << 32)).to(torch.int32)
