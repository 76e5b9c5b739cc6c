"""Tensors of observations: pixels as arrays, and their way to the device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import Image
from edgeflow.kernels.kv.layout import uploaded


def pixels(image: Image) -> NDArray[np.uint8]:
    """[H, W, 3], not a copy."""
    return np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, 3)


def placed(values: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device, uploaded where it is not there yet."""
    return values if values.device.type == device.type else uploaded(values, device)


def unit_range(image: Image, place: torch.device) -> Tensor:
    """[3, h, w] float32, 0 to 1"""
    copied = pixels(image).copy()  # torch takes no bytes that it may not write
    raw = uploaded(torch.from_numpy(copied), place)
    planes = torch.empty(3, image.height, image.width, dtype=torch.float32, device=place)
    return planes.copy_(raw.permute(2, 0, 1)).div_(255)
