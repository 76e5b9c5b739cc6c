"""Tensors of observations: pixels as arrays, and their way to the device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.kernels.kv.layout import uploaded
from edgeflow.types import Image


def pixels(image: Image) -> NDArray[np.uint8]:
    """[H, W, 3], not a copy."""
    return np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, 3)


def placed(values: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device, uploaded where it is not there yet."""
    return values if values.device.type == device.type else uploaded(values, device)
