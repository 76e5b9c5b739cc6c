"""Rotary frequencies of a decoder and their scaling for long texts (reference: transformers' rope kinds).

default: theta^(-2i/D). linear: divided by `factor`. llama3: long wavelengths are divided by `factor`, short ones kept,
those between blended. dynamic: theta grows with the length of the text.

The published dynamic kind recomputes theta while a text grows and leaves older keys as they were turned, so a result
depends on how the text was cut. Here theta follows from the capacity of the slots: texts within the trained positions
are as published, a longer one is what a single pass over a text as long as its slot gives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.kernels.rope_write_kv import plain_frequencies

KINDS = ("default", "linear", "dynamic", "llama3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Scaling of a rotary embedding. sections: D/2 frequencies by component of the position (M-RoPE), or empty.

    low, high: wavelengths beyond trained / low are scaled, those below trained / high kept (llama3).
    """

    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    trained: int = 8192
    sections: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"rotary embedding of type {self.kind!r} is not supported; supported: {', '.join(KINDS)}")
        numbers = (self.factor, self.low, self.high)
        if not all(type(each) in (int, float) and 0 < each < math.inf for each in numbers) or self.low >= self.high:
            raise ValueError(f"rope_scaling: 0 < factor, 0 < low_freq_factor < high_freq_factor, got {numbers}")
        if type(self.trained) is not int or self.trained < 1:
            raise ValueError(f"rope_scaling.original_max_position_embeddings must be at least 1, got {self.trained!r}")
        if not all(type(each) is int and each > 0 for each in self.sections):
            raise ValueError(f"rope_scaling.mrope_section must be whole numbers, at least 1, got {self.sections}")

    def frequencies(self, head_dim: int, theta: float, positions: int, capacity: int) -> Tensor:
        """[D/2] float32. positions: those the model was trained for; capacity: those in use."""
        if self.kind == "dynamic" and capacity > positions:
            stretch = self.factor * capacity / positions - (self.factor - 1)
            theta *= stretch ** (head_dim / (head_dim - 2))
        plain = plain_frequencies(head_dim, theta)
        if self.kind == "linear":
            return plain / self.factor
        return self._blended(plain) if self.kind == "llama3" else plain

    def _blended(self, plain: Tensor) -> Tensor:
        """Share kept: 1 below trained / high, 0 beyond trained / low, linear in the number of turns between."""
        turns = self.trained * plain / (2 * math.pi)  # of a pair over the trained positions
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return torch.lerp(plain / self.factor, plain, kept)


PLAIN = Rope()
