"""Images as flow-matching policies take them: fitted into a square without changing their aspect, -1 to 1."""

from __future__ import annotations

from enum import Enum

import torch.nn.functional as F
from torch import Tensor


class Margin(Enum):
    """Where a square that an image does not fill is dark. LEFT_TOP: there. AROUND: on both sides, the odd pixel at the
    right and bottom."""

    LEFT_TOP = "left and top"
    AROUND = "around"


def fitted(image: Tensor, side: int, margin: Margin) -> Tensor:
    """[3, h, w] float32 from 0 to 1 → [3, side, side], -1 to 1: bilinear without antialiasing, corners not aligned."""
    height, width = image.shape[1:]
    if (height, width) != (side, side):
        ratio = max(width / side, height / side)
        rows, columns = max(int(height / ratio), 1), max(int(width / ratio), 1)
        image = F.interpolate(image[None], size=(rows, columns), mode="bilinear", align_corners=False)[0]
        top, left = side - rows, side - columns
        if margin is Margin.AROUND:
            top, left = top // 2, left // 2
        image = F.pad(image, (left, side - columns - left, top, side - rows - top))
    return image * 2 - 1
