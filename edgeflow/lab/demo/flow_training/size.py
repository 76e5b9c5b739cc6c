"""Dimensions of the flow policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MLP_MULTIPLE: Final = 256  # the published rule for the width of the expert's MLP rounds up to a multiple of this


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSize:
    """Dimensions of the policy, and its flow's schedule.

    scale_factor: patches per side that one image token stands for. chunk: rows of 50 ms. state, action: padded widths.
    """

    image: int = 96
    patch: int = 16
    vision_width: int = 192
    vision_layers: int = 3
    vision_heads: int = 6
    vision_mlp: int = 768
    scale_factor: int = 1
    width: int = 128
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    mlp: int = 352
    vocab: int = 512
    expert_multiplier: float = 0.75
    chunk: int = 16
    state: int = 8
    action: int = 8
    min_period: float = 4e-3
    max_period: float = 4.0

    @property
    def image_tokens(self) -> int:
        """Tokens of one image."""
        return (self.image // self.patch // self.scale_factor) ** 2

    @property
    def expert_width(self) -> int:
        return int(self.width * self.expert_multiplier)

    @property
    def expert_mlp(self) -> int:
        """8/3 of the width, rounded up, as the published code derives it."""
        return -(-int(2 * 4 * self.expert_width / 3) // _MLP_MULTIPLE) * _MLP_MULTIPLE
