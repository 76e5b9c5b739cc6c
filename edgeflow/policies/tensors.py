"""Shared by families: the inputs of observations, pixels on their way to the device, the numbers of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import Image, Observation
from edgeflow.kernels.kv.layout import uploaded
from edgeflow.models.quantization import quantised_bytes
from edgeflow_client.errors import InvalidArgument

Shapes = Mapping[str, tuple[int, ...]]
"""Tensors by their published names."""


def image_of(observation: Observation, name: str, width: int = 0, height: int = 0) -> Image:
    """The image of a camera; InvalidArgument for a missing one and for another size. width, height: 0 = any."""
    image = observation.images.get(name)
    if image is not None and width in (0, image.width) and height in (0, image.height):
        return image
    found = "is missing" if image is None else f"has {image.width} x {image.height} pixels"
    taken = f"; the policy takes {width} x {height}" if width and height else ""
    raise InvalidArgument(f"{name} {found}{taken}", field="frame.images")


def vector_of(vectors: Mapping[str, tuple[float, ...]], name: str, size: int) -> tuple[float, ...]:
    """A state vector; InvalidArgument for another size and for numbers that are not finite."""
    values = vectors.get(name, ())
    if len(values) != size:
        raise InvalidArgument(f"{name} has {len(values)} numbers; the policy takes {size}", field="frame.state")
    if not all(map(math.isfinite, values)):
        raise InvalidArgument(f"{name} has a number that is not finite", field="frame.state")
    return values


def pixels(image: Image) -> NDArray[np.uint8]:
    """[H, W, 3], not a copy."""
    return np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, 3)


def placed(values: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device, uploaded if it is on the host."""
    return values if values.device.type == device.type else uploaded(values, device)


def unit_range(image: Image, place: torch.device) -> Tensor:
    """[3, h, w] float32, 0 to 1"""
    copied = pixels(image).copy()  # torch takes no bytes that it may not write
    raw = uploaded(torch.from_numpy(copied), place)
    planes = torch.empty(3, image.height, image.width, dtype=torch.float32, device=place)
    return planes.copy_(raw.permute(2, 0, 1)).div_(255)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNumbers:
    """The numbers of weights that are loaded."""

    decoder: int
    """The number of weights of the decoder's projections."""
    floats: int
    """The number of weights that stay in float32."""
    others: int
    """The number of all other weights."""
    quantised: int = 0
    """Bytes of the weights in 4 bits."""

    @classmethod
    def of(
        cls, shapes: Shapes, *, decoder: tuple[str, ...], floats: tuple[str, ...], unused: tuple[str, ...]
    ) -> WeightNumbers:
        """Count tensors by shape. decoder, floats, unused: parts of the names of each kind; all others count as
        such.
        """
        loaded = {name: shape for name, shape in shapes.items() if not _has(name, unused)}
        quantised = quantised_bytes(loaded)
        sums = {"decoder": 0, "floats": 0, "others": 0}
        for name in loaded.keys() - quantised.keys():
            kinds = (kind for kind, parts in (("floats", floats), ("decoder", decoder)) if _has(name, parts))
            sums[next(kinds, "others")] += math.prod(loaded[name])
        return cls(**sums, quantised=sum(quantised.values()))


def _has(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name for part in parts)
