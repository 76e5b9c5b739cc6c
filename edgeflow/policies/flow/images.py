"""Images as flow-matching policies take them: fitted into a size without changing their aspect, -1 to 1."""

from __future__ import annotations

from enum import Enum

import torch.nn.functional as F
from torch import Tensor


class Margin(Enum):
    """Where a picture that an image does not fill is dark. LEFT_TOP: there. AROUND: on both sides, the odd pixel at the
    right and bottom."""

    LEFT_TOP = "left and top"
    AROUND = "around"


def fitted(image: Tensor, size: tuple[int, int], margin: Margin) -> Tensor:
    """[3, h, w] float32 from 0 to 1 → [3, H, W], -1 to 1: bilinear without antialiasing, corners not aligned.

    size: H, W.
    """
    height, width = size
    if image.shape[1:] != size:
        ratio = max(image.shape[2] / width, image.shape[1] / height)
        rows, columns = (max(int(side / ratio), 1) for side in image.shape[1:])
        image = F.interpolate(image[None], size=(rows, columns), mode="bilinear", align_corners=False)[0]
        top, left = height - rows, width - columns
        if margin is Margin.AROUND:
            top, left = top // 2, left // 2
        image = F.pad(image, (left, width - columns - left, top, height - rows - top))
    return image * 2 - 1
