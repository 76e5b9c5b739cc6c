"""Prompts: token ids, rotary positions and images of the rows that enter a slot.

M-RoPE: text counts on, an image's rows lie in a grid (time, height, width) that begins where text ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.models.qwen2_5_vl import Patches


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image within a prompt."""

    start: int
    """Its first row."""
    rows: int
    """The number of its rows, h w / 4 of its patch grid."""
    patches: Patches

    @property
    def end(self) -> int:
        return self.start + self.rows


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's rows."""

    ids: tuple[int, ...]
    """One token per row; in the rows of an image, the image token."""
    positions: Tensor
    """[C, L_P]: RoPE positions."""
    shift: int = 0
    """A decode row's RoPE position minus its place in the slot."""
    images: tuple[PlacedImage, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def head(self, length: int) -> Prompt:
        """The first rows, as a prefix that other prompts may share."""
        images = tuple(image for image in self.images if image.start < length)
        return Prompt(self.ids[:length], self.positions[:, :length], self.shift, images)

    def common(self, other: Prompt) -> int:
        """The number of leading rows that two prompts share."""
        same = _common(self.ids, other.ids)
        for mine, theirs in zip(self.images, other.images, strict=False):
            if mine.start >= same:
                break  # images follow each other
            if mine.start != theirs.start or not torch.equal(mine.patches.values, theirs.patches.values):
                return min(same, mine.start)
        return same


def _common(mine: tuple[int, ...], theirs: tuple[int, ...]) -> int:
    """The number of leading ids that two prompts share, by halves: a loop over a long prompt takes milliseconds."""
    same, stop = 0, min(len(mine), len(theirs))
    while same < stop:
        middle = (same + stop + 1) // 2
        if mine[same:middle] == theirs[same:middle]:
            same = middle
        else:
            stop = middle - 1
    return same


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
