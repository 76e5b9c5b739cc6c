"""An OpenVLA checkpoint before its weights are read: what it needs, and how it is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from edgeflow.engine.memory import activation_bytes, written_bytes
from edgeflow.engine.policy import Footprint, Placement
from edgeflow.engine.table import check_kv
from edgeflow.kernels.kv.formats import DENSE, KVFormat, KVShape, check_action_tokens
from edgeflow.models.checkpoint import tensor_shapes
from edgeflow.models.quantization import quantised_bytes
from edgeflow.policies.openvla.config import OpenVLAConfig, load_config
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow_client.errors import CheckpointError

_BLOCKS = ("vision_backbone.featurizer.blocks.", "vision_backbone.fused_featurizer.blocks.")
_PATCH = "vision_backbone.featurizer.patch_embed.proj.weight"


@dataclass(frozen=True, slots=True)
class TensorCounts:
    """The weights of a checkpoint, by use."""

    decoder: int
    """Float weights, in numbers."""
    vision: int
    """Float weights of the rest, in numbers."""
    quantised: int
    """Bytes of those in 4 bits."""
    image_tokens: int
    """Rows of a prefill that a frame's image takes."""


def count_tensors(directory: Path, config: OpenVLAConfig) -> TensorCounts:
    """The weights of a checkpoint, by the headers of its files; CheckpointError where it has no vision tower."""
    shapes = tensor_shapes(directory)
    if _PATCH not in shapes:
        raise CheckpointError(f"{directory}: {_PATCH} is missing: download the checkpoint again")
    unused = tuple(prefix + f"{_last_block(shapes, prefix)}." for prefix in _BLOCKS)
    loaded = {name: shape for name, shape in shapes.items() if not name.startswith(unused)}
    quantised = quantised_bytes(loaded)
    floats = {name: shape for name, shape in loaded.items() if name not in quantised}
    decoder = _numbers(shape for name, shape in floats.items() if name.startswith("language_model."))
    side = config.image.side // shapes[_PATCH][-1]
    return TensorCounts(decoder, _numbers(floats.values()) - decoder, sum(quantised.values()), side * side)


def _last_block(shapes: Mapping[str, object], prefix: str) -> int:
    """The index of a tower's last block, which is never run: features are the second-to-last block's output."""
    return max((int(name.removeprefix(prefix).split(".")[0]) for name in shapes if name.startswith(prefix)), default=0)


def _numbers(shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(map(math.prod, shapes))


class PublishedOpenVLA:
    """A checkpoint whose configuration has been read (engine/policy.Published)."""

    def __init__(
        self, directory: Path, *, center_crop: bool, kv_format: KVFormat = DENSE, control_rate_hz: float = 0.0
    ) -> None:
        self._directory = directory
        self._control_rate_hz = control_rate_hz
        self._center_crop = center_crop
        self._kv_format = kv_format
        self._config = load_config(directory, center_crop=center_crop)

    @property
    def unnorm_keys(self) -> tuple[str, ...]:
        return tuple(self._config.statistics)

    def footprint(self, dtype: torch.dtype) -> Footprint:
        """Memory of the policy; CheckpointError where the checkpoint has no vision tower."""
        numbers, text = count_tensors(self._directory, self._config), self._config.text
        stages = self._config.action_width
        kv = KVShape(
            layers=text.num_hidden_layers,
            capacity=0,
            kv_heads=text.num_key_value_heads,
            head_dim=text.head_dim,
            dtype=dtype,
        )
        return Footprint(
            decoder=numbers.decoder,
            other=numbers.vision,
            quantised=numbers.quantised,
            slots=stages,
            kv=kv,
            kv_format=self._kv_format,
            positions=numbers.image_tokens + stages,
            row_bytes=activation_bytes(text, 1, dtype) + written_bytes(self._kv_format, kv, rows=1),
            graphs=True,
        )

    def load(self, placement: Placement) -> OpenVLAPolicy:
        check_kv(self._kv_format, placement.device, section="policy.")
        check_action_tokens("policy.kv", self._kv_format, self._config.action_width)
        return OpenVLAPolicy.load(
            self._directory,
            placement.dtype,
            placement.device,
            center_crop=self._center_crop,
            control_rate_hz=self._control_rate_hz,
            kv_format=self._kv_format,
            table=placement.table,
            preprocess_on_device=placement.preprocess_on_device,
        )
