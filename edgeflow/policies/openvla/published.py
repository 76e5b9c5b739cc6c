"""An OpenVLA checkpoint before its weights are read: what it needs, and how it is loaded."""

from __future__ import annotations

from pathlib import Path

import torch

from edgeflow.engine.memory import activation_bytes, written_bytes
from edgeflow.engine.policy import Footprint, Placement
from edgeflow.engine.table import check_kv
from edgeflow.kernels.kv.formats import DENSE, KVFormat, KVShape, check_action_tokens
from edgeflow.policies.openvla.config import load_config
from edgeflow.policies.openvla.footprint import read_footprint
from edgeflow.policies.openvla.policy import OpenVLAPolicy


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
        numbers, text = read_footprint(self._directory, self._config), self._config.text
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
