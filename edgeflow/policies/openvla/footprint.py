"""The size of a policy before it is loaded: what the headers of its files say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeflow.models.checkpoint import tensor_shapes
from edgeflow.models.quantization import quantised_bytes
from edgeflow.policies.openvla.config import OpenVLAConfig
from edgeflow_client.errors import CheckpointError

_BLOCKS = ("vision_backbone.featurizer.blocks.", "vision_backbone.fused_featurizer.blocks.")
_PATCH = "vision_backbone.featurizer.patch_embed.proj.weight"


@dataclass(frozen=True, slots=True)
class Footprint:
    """decoder, vision: float weights, in numbers. quantised: bytes of those in 4 bits. image_tokens: rows of a prefill
    that a frame's image takes."""

    decoder: int
    vision: int
    quantised: int
    image_tokens: int


def read_footprint(directory: Path, config: OpenVLAConfig) -> Footprint:
    """The footprint of a checkpoint; CheckpointError where it has no vision tower."""
    shapes = tensor_shapes(directory)
    if _PATCH not in shapes:
        raise CheckpointError(f"{directory}: {_PATCH} is missing: download the checkpoint again")
    unused = tuple(prefix + f"{_last_block(shapes, prefix)}." for prefix in _BLOCKS)
    loaded = {name: shape for name, shape in shapes.items() if not name.startswith(unused)}
    quantised = quantised_bytes(loaded)
    floats = {name: shape for name, shape in loaded.items() if name not in quantised}
    decoder = _numbers(shape for name, shape in floats.items() if name.startswith("language_model."))
    side = config.image.side // shapes[_PATCH][-1]
    return Footprint(decoder, _numbers(floats.values()) - decoder, sum(quantised.values()), side * side)


def _last_block(shapes: Mapping[str, object], prefix: str) -> int:
    """The index of a tower's last block, which is never run: features are the second-to-last block's output."""
    return max((int(name.removeprefix(prefix).split(".")[0]) for name in shapes if name.startswith(prefix)), default=0)


def _numbers(shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(map(math.prod, shapes))
