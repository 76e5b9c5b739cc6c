"""M-RoPE positions: text counts on, an image's rows lie in a grid (time, height, width) begun where text ended."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def mrope_positions(length: int, images: Sequence[tuple[int, tuple[int, int]]]) -> tuple[Tensor, int]:
    """[3, length] int64 for a prompt, and what decoding adds to a row's place in the slot.

    images: where each image's rows begin, and its merged grid (h, w); ascending. Text after an image goes on after
    the largest position so far.
    """
    parts: list[Tensor] = []
    row = after = 0
    for begin, (height, width) in images:
        parts.append(_text(begin - row, after))
        after += begin - row
        down, right = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        parts.append(torch.stack([torch.zeros_like(down), down, right]).flatten(1) + after)
        row = begin + height * width
        after += max(height, width)
    parts.append(_text(length - row, after))
    return torch.cat(parts, dim=1), after - row


def _text(count: int, first: int) -> Tensor:
    return torch.arange(first, first + count).expand(3, -1)
