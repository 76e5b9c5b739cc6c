"""An OpenVLA checkpoint before its weights are read: what it needs, and how it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from edgeflow.engine.memory import activation_bytes, written_bytes
from edgeflow.engine.placement import check_kv
from edgeflow.engine.policy import Footprint, Placement
from edgeflow.kernels.kv.formats import DENSE, KVFormat, check_action_tokens
from edgeflow.models.checkpoint import tensor_shapes
from edgeflow.policies.openvla.config import OpenVLAConfig, load_config
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.policies.tensors import WeightNumbers
from edgeflow_client.errors import CheckpointError

_BLOCKS = ("vision_backbone.featurizer.blocks.", "vision_backbone.fused_featurizer.blocks.")
_PATCH = "vision_backbone.featurizer.patch_embed.proj.weight"


def count_weights(directory: Path, config: OpenVLAConfig) -> tuple[WeightNumbers, int]:
    """The weights of a checkpoint, by the headers of its files, and the rows of a prefill that an image takes.

    CheckpointError where it has no vision tower.
    """
    shapes = tensor_shapes(directory)
    if _PATCH not in shapes:
        raise CheckpointError(f"{directory}: {_PATCH} is missing: download the checkpoint again")
    unused = tuple(prefix + f"{_last_block(shapes, prefix)}." for prefix in _BLOCKS)
    weights = WeightNumbers.of(shapes, decoder=("language_model.",), floats=(), unused=unused)
    return weights, (config.image.side // shapes[_PATCH][-1]) ** 2


def _last_block(shapes: Mapping[str, object], prefix: str) -> int:
    """The index of a tower's last block, which is never run: features are the second-to-last block's output."""
    return max((int(name.removeprefix(prefix).split(".")[0]) for name in shapes if name.startswith(prefix)), default=0)


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
        text, stages = self._config.text, self._config.action_width
        weights, image_tokens = count_weights(self._directory, self._config)
        kv = text.kv_shape(dtype)
        return Footprint(
            decoder=weights.decoder,
            other=weights.others,
            quantised=weights.quantised,
            slots=stages,
            kv=kv,
            kv_format=self._kv_format,
            positions=image_tokens + stages,
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
