"""The memory of a flow-matching policy before it is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.engine.policy import Footprint
from edgeflow.kernels.kv.formats import KVShape
from edgeflow.models.quantization import quantised_bytes
from edgeflow.policies.flow.config import FlowConfig

LIVE = 8
"""Rows of a tower's width that are in memory at once for each patch."""
Shapes = Mapping[str, tuple[int, ...]]
"""Tensors by their published names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackNumbers:
    """Sizes of both stacks: the wider one's width and inner, the numbers of queries and of keys."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNumbers:
    """Weights that are loaded, in numbers. decoder: of the stacks' projections; floats: those that stay in float32.
    quantised: bytes of those in 4 bits."""

    decoder: int
    floats: int
    others: int
    quantised: int = 0

    @classmethod
    def of(
        cls,
        shapes: Shapes,
        *,
        decoder: tuple[str, ...],
        floats: tuple[str, ...],
        unused: tuple[str, ...],
    ) -> WeightNumbers:
        """The others say what a name contains."""
        loaded = {name: shape for name, shape in shapes.items() if not _has(name, unused)}
        quantised = quantised_bytes(loaded)
        sums = {"decoder": 0, "floats": 0, "others": 0}
        for name in loaded.keys() - quantised.keys():
            kinds = (kind for kind, parts in (("floats", floats), ("decoder", decoder)) if _has(name, parts))
            sums[next(kinds, "others")] += math.prod(loaded[name])
        return cls(**sums, quantised=sum(quantised.values()))


def _has(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionNumbers:
    """Sizes of a tower. patches, rows: of an image, before and behind the projection."""

    patches: int
    width: int
    inner: int
    rows: int


def footprint(
    weights: WeightNumbers,
    stacks: StackNumbers,
    vision: VisionNumbers,
    flow: FlowConfig,
    sizes: FlowSizes,
    dtype: torch.dtype,
) -> Footprint:
    """Memory of the weights, of a session's slots with their state, and of the activations of a row and of a frame."""
    cameras, widths = len(flow.cameras), (stacks.heads + 2 * stacks.kv_heads) * stacks.head_dim
    patch = LIVE * vision.width + 2 * vision.inner
    return Footprint(
        decoder=weights.decoder,
        other=weights.others + weights.floats * torch.float32.itemsize // dtype.itemsize,
        quantised=weights.quantised,
        slots=sizes.steps + 1,
        step_rows=sizes.step_rows,
        kv=KVShape(layers=stacks.layers, capacity=0, kv_heads=stacks.kv_heads, head_dim=stacks.head_dim, dtype=dtype),
        positions=cameras * vision.rows + sizes.closing + sizes.step_rows,
        row_bytes=(4 * stacks.width + 2 * widths + 3 * stacks.inner) * dtype.itemsize,
        frame_bytes=(cameras * (3 * flow.side**2 + vision.patches * patch) + (sizes.steps + 1) * sizes.state_numbers)
        * torch.float32.itemsize,
    )
