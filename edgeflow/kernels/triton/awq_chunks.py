"""A weight of 4 bits in the order in which its kernel reads it: chunks of 128 inputs, output after output.

In a chunk an output has 64 contiguous bytes, and the next output the next 64, so that the tile of a program is one
piece of memory for any number of outputs. A word holds eight codes. A shift and a mask leave two of them, of
neighbouring inputs, in its halves, which is how matrix units take a pair of 16-bit floats.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.awq import AwqWeight

CHUNK = 128
"""Inputs of a chunk; the last one is filled up with codes and scales of 0."""
WORDS = CHUNK // 8
"""Words of a chunk for one output."""
RUN = 2 * WORDS
"""Inputs that one shift leaves of a chunk's words. Nibble i of word j is input RUN i + 2 j; nibble i + 4 the next."""


@dataclass(frozen=True, slots=True, eq=False)
class AwqChunks:
    """words int32 [C, N, 16] of C chunks; scales float16 [C * 128 / G, N]; zeros uint8 [C * 128 / G, N / 2], the even
    output in the low nibble. N is a multiple of 8. inputs: E; group: G."""

    words: Tensor
    scales: Tensor
    zeros: Tensor
    inputs: int
    group: int

    @classmethod
    def of(cls, weight: AwqWeight) -> AwqChunks:
        """Reorder a weight. Nothing of it is shared."""
        outputs, inputs = weight.shape
        chunks = -(-inputs // CHUNK)
        codes = F.pad(weight.q, (0, chunks * CHUNK - inputs)).view(outputs, chunks, -1, WORDS, 2).to(torch.int32)
        words = torch.zeros(outputs, chunks, WORDS, dtype=torch.int32, device=weight.device)
        for place in range(codes.shape[2]):
            even, odd = codes[:, :, place].unbind(-1)
            words |= even << 4 * place | odd << 16 + 4 * place
        groups = 0, chunks * (CHUNK // weight.group) - weight.scales.shape[1]
        scales, zeros = (F.pad(each, groups).t().contiguous() for each in (weight.scales, weight.zeros))
        words = words.transpose(0, 1).contiguous()
        return cls(words, scales, zeros[:, ::2] | zeros[:, 1::2] << 4, inputs, weight.group)

    @property
    def shape(self) -> tuple[int, int]:
        """N, E"""
        return self.words.shape[1], self.inputs

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.scales.nbytes + self.zeros.nbytes
