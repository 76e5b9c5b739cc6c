"""Rotary frequencies of a decoder and their scaling for long texts (reference: transformers' rope kinds).

default: theta^(-2i/D). linear: divided by `factor`. llama3: long wavelengths are divided by `factor`, short ones kept,
those between blended. yarn: the same with a ramp over the index of a frequency, and cosines and sines have a factor.
dynamic: theta grows with the length of the text.

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

KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
LEAST_RAMP = 1e-3  # frequencies from the first scaled one to the last kept one, where these would be the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Scaling of a rotary embedding."""

    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    """Wavelengths of fewer turns than this within the `trained` positions are scaled (llama3, yarn)."""
    high: float = 4.0
    """Wavelengths of more turns than this are kept."""
    trained: int = 8192
    sections: tuple[int, ...] = ()
    """The D/2 frequencies by component of the position (M-RoPE), or empty."""
    whole: bool = True
    """True where the ramp of yarn begins and ends at whole frequencies."""
    magnitude: float = 0.0
    """The factor of cosines and sines; 0: as yarn computes it."""
    mscale: float = 0.0
    """How yarn's factors grow with the logarithm of `factor`; 0 where a checkpoint has none."""
    mscale_all_dim: float = 0.0
    """Likewise, for the scores of attention."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"rotary embedding of type {self.kind!r} is not supported; supported: {', '.join(KINDS)}")
        numbers = (self.factor, self.low, self.high)
        if not all(type(each) in (int, float) and 0 < each < math.inf for each in numbers) or self.low >= self.high:
            raise ValueError(f"rope_scaling: 0 < factor, 0 < low_freq_factor < high_freq_factor, got {numbers}")
        if type(self.trained) is not int or self.trained < 1:
            raise ValueError(f"rope_scaling.original_max_position_embeddings must be at least 1, got {self.trained!r}")
        if not all(type(each) is int and each > 0 for each in self.sections):
            raise ValueError(f"rope_scaling.mrope_section must be integers, at least 1, got {self.sections}")
        factors = {"attention_factor": self.magnitude, "mscale": self.mscale, "mscale_all_dim": self.mscale_all_dim}
        for name, value in factors.items():
            if type(value) not in (int, float) or not 0 <= value < math.inf:
                raise ValueError(f"rope_scaling.{name} must be a number, at least 0, got {value!r}")
        if type(self.whole) is not bool:
            raise ValueError(f"rope_scaling.truncate must be true or false, got {self.whole!r}")

    def frequencies(self, head_dim: int, theta: float, positions: int, capacity: int) -> Tensor:
        """[D/2] float32. positions: those the model was trained for; capacity: those in use."""
        if self.kind == "dynamic" and capacity > positions:
            stretch = self.factor * capacity / positions - (self.factor - 1)
            theta *= stretch ** (head_dim / (head_dim - 2))
        plain = plain_frequencies(head_dim, theta)
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "yarn":
            return self._ramped(plain, theta)
        return self._blended(plain) if self.kind == "llama3" else plain

    @property
    def turn_factor(self) -> float:
        """The factor of all cosines and sines."""
        if self.kind != "yarn":
            return 1.0
        if self.magnitude:
            return self.magnitude
        if self.mscale and self.mscale_all_dim:
            return self._growth(self.mscale) / self._growth(self.mscale_all_dim)
        return self._growth(1.0)

    @property
    def score_factor(self) -> float:
        """The factor of attention scores in models that scale them with their texts (DeepSeek)."""
        return 1.0 if self.kind == "default" else self._growth(self.mscale_all_dim) ** 2

    def _growth(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def _blended(self, plain: Tensor) -> Tensor:
        """The share of each frequency that is kept: 1 below trained / high, 0 beyond trained / low, linear in the
        number of turns between.
        """
        turns = self.trained * plain / (2 * math.pi)  # of a pair over the trained positions
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return torch.lerp(plain / self.factor, plain, kept)

    def _ramped(self, plain: Tensor, theta: float) -> Tensor:
        """The share of each frequency that is scaled: 0 up to the frequency of `high` turns, 1 from that of `low` turns
        on, linear between.
        """
        count = len(plain)
        first, last = (self._of_turns(turns, 2 * count, theta) for turns in (self.high, self.low))
        if self.whole:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * count - 1)
        scaled = ((torch.arange(count) - first) / ((last - first) or LEAST_RAMP)).clamp(0, 1)
        return torch.lerp(plain, plain / self.factor, scaled)

    def _of_turns(self, turns: float, head_dim: int, theta: float) -> float:
        """The index of the frequency that turns so often over the trained positions."""
        return head_dim * math.log(self.trained / (turns * 2 * math.pi)) / (2 * math.log(theta))


PLAIN = Rope()
