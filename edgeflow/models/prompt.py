"""Prompts: token ids, rotary positions and images of the rows that enter a slot."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.models.qwen2_5_vl.preprocess import Patches


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image within a prompt. start: its first row; rows: how many it takes, h w / 4 of its patch grid."""

    start: int
    rows: int
    patches: Patches

    @property
    def end(self) -> int:
        return self.start + self.rows


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's rows. ids: one per row, the image token in an image's rows. positions [C, L_P]: RoPE positions.

    shift: a decode row's RoPE position minus its place in the slot.
    """

    ids: tuple[int, ...]
    positions: Tensor
    shift: int = 0
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
            if mine.start < same and not _same_image(mine, theirs):
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


def _same_image(one: PlacedImage, other: PlacedImage) -> bool:
    return one.start == other.start and torch.equal(one.patches.values, other.patches.values)
