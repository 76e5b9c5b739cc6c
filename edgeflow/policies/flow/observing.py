"""An observation as a part of a flow policy's inputs: fitted images, and the state with its past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowMoment:
    """An observation, prepared as a part of a history."""

    pixel_values: Tensor
    """[C, 3, h, w] float32 of C present cameras."""
    instruction: str
    state: NDArray[np.float32]
    """[S] in the policy's units."""
    stamp_ns: int


def state_with_past(
    states: Sequence[NDArray[np.float32]], gaps_ns: Sequence[int], delay_ms: float | None
) -> NDArray[np.float32]:
    """The newest state; of each earlier one, the nearest in time first, its difference to the newest and its age in
    seconds; the delay in seconds, unless it is None: [FlowConfig.state_inputs] in the policy's units.

    states: [S] of each observation, the oldest first. gaps_ns: between neighbours.
    """
    *earlier, newest = states
    parts = [newest]
    for state, age_ns in zip(reversed(earlier), accumulate(reversed(gaps_ns)), strict=True):
        parts += [state - newest, np.array([age_ns / 1e9], np.float32)]
    if delay_ms is not None:
        parts.append(np.array([delay_ms / 1e3], np.float32))
    return np.concatenate(parts)
