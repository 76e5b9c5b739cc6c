"""The embeddings that flow-matching policies share: flow times, and the rows of a prefix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.kernels.linear import Linear


class TimeEmbedding:
    """Sines, then cosines, of flow times: periods are a geometric series from the shortest to the longest. In float64.

    width: numbers of an embedding, an even number.
    """

    def __init__(self, width: int, periods: tuple[float, float], device: torch.device) -> None:
        shortest, longest = periods
        fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=device)
        self._rates = 1.0 / (shortest * (longest / shortest) ** fraction) * 2 * math.pi

    def __call__(self, time: Tensor) -> Tensor:
        """[n] float32 → [n, width] float32"""
        angles = self._rates * time.double()[:, None]
        return torch.cat([angles.sin(), angles.cos()], dim=1).float()


@dataclass(frozen=True, slots=True)
class RowTimes:
    """Flow times of the rows of a step. values [n + 1]: those of n candidates, then 0; of_row [n, H]: the index of each
    row's time, which is 0 for a clean row."""

    values: Tensor
    of_row: Tensor

    @classmethod
    def of(cls, time: Tensor, clean: Tensor) -> RowTimes:
        """time [n] float32, clean [n, H] bool"""
        count = len(time)
        own = torch.arange(count, device=time.device)[:, None]
        return cls(torch.cat([time, time.new_zeros(1)]), torch.where(clean, count, own))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixEmbedding:
    """Embeds the prefix of a frame: rows of its images, its text, and its state where the prefix has it.

    image_rows: of each image. images: [n, 3, h, w] → [n, image_rows, E]. table [V, E]: embeddings of tokens. state: the
    projection of a state to a row, in float32; None = the prefix has no state.
    """

    image_rows: int
    images: Callable[[Tensor], Tensor]
    table: Tensor
    state: Linear | None = None

    def rows(self, cameras: int, tokens: int) -> int:
        """Rows of a prefix."""
        return cameras * self.image_rows + tokens + (self.state is not None)

    def __call__(self, pixel_values: Sequence[Tensor], prompt_ids: Sequence[Tensor], state: Tensor) -> list[Tensor]:
        """Images [C, 3, h, w], token ids [t] and states [B, S] of B frames → B tensors [L_P, E]"""
        dtype, width = self.table.dtype, self.table.shape[1]
        images = self.images(torch.cat(list(pixel_values))).to(dtype)
        of_frames = torch.split(images, [len(each) for each in pixel_values])
        texts = [self.table[ids] * math.sqrt(width) for ids in prompt_ids]
        parts = [[image.flatten(0, 1), text] for image, text in zip(of_frames, texts, strict=True)]
        if self.state is not None:
            for part, row in zip(parts, self.state(state.float()).to(dtype), strict=True):
                part.append(row[None])
        return [torch.cat(part) for part in parts]
