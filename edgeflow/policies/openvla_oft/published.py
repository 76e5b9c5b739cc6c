"""A checkpoint of OpenVLA-OFT before its weights are read."""

from __future__ import annotations

from pathlib import Path

import torch

from edgeflow.engine.memory import activation_bytes
from edgeflow.engine.policy import Footprint, Placement
from edgeflow.kernels.kv.formats import DENSE, KVShape, slot_bytes
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import LlamaDecoder
from edgeflow.policies.openvla.config import load_config
from edgeflow.policies.openvla.footprint import read_footprint
from edgeflow.policies.openvla.prompt import Prompter
from edgeflow.policies.openvla.vision import Vision
from edgeflow.policies.openvla_oft.checkpoint import OFTCheckpoint
from edgeflow.policies.openvla_oft.heads import (
    ActionHead,
    ProprioProjector,
    head_numbers,
    proprio_numbers,
    read_weights,
)
from edgeflow.policies.openvla_oft.network import OFTNetwork
from edgeflow.policies.openvla_oft.policy import OpenVLAOFTPolicy, fixed_rows


class PublishedOpenVLAOFT:
    """A checkpoint directory whose settings, files and statistics have been read; CheckpointError for a wrong
    configuration."""

    def __init__(self, directory: Path, checkpoint: OFTCheckpoint, *, center_crop: bool = False) -> None:
        self._directory = directory
        self._checkpoint = checkpoint
        self._config = load_config(directory, center_crop=center_crop)

    @property
    def unnorm_keys(self) -> tuple[str, ...]:
        return tuple(self._checkpoint.statistics.actions)

    def footprint(self, dtype: torch.dtype) -> Footprint:
        """Rows with their keys and values, which live as long as a pass: no session keeps slots."""
        text, settings, files = self._config.text, self._checkpoint.settings, self._checkpoint.files
        found = read_footprint(self._directory, self._config)
        layers, heads = text.num_hidden_layers, text.num_key_value_heads
        position = KVShape(layers=layers, capacity=1, kv_heads=heads, head_dim=text.head_dim, dtype=dtype)
        extra = head_numbers(settings.dims, text.hidden_size) if files.head else 0
        extra += proprio_numbers(settings.proprio, text.hidden_size) if files.proprio else 0
        return Footprint(
            decoder=found.decoder,
            other=found.vision + extra,
            quantised=found.quantised,
            slots=0,
            positions=fixed_rows(settings, found.image_tokens),
            row_bytes=activation_bytes(text, 1, dtype) + slot_bytes(DENSE, position),
        )

    def load(self, placement: Placement) -> OpenVLAOFTPolicy:
        """Read the weights, small files first; CheckpointError names the file and the tensor at fault."""
        config, settings, files = self._config, self._checkpoint.settings, self._checkpoint.files
        prompter = Prompter(self._directory, vicuna=config.vicuna_prompt)
        weights = Weights(self._directory, placement.dtype, placement.device)
        head = read_head(files.head, weights, settings.dims, config.text.hidden_size)
        proprio = read_proprio(files.proprio, weights, settings.proprio, config.text.hidden_size)
        network = OFTNetwork(
            LlamaDecoder(config.text, weights.under("language_model."), table=placement.table),
            Vision(config, weights, placement.table),
            placement.device,
            head=head,
            proprio=proprio,
        )
        return OpenVLAOFTPolicy(
            config,
            settings,
            self._checkpoint.statistics,
            network,
            prompter.ids,
            preprocess_on_device=placement.preprocess_on_device,
        )


def read_head(path: Path | None, like: Weights, dims: int, width: int) -> ActionHead | None:
    """The action head of a file, in the dtype and on the device of other weights."""
    return ActionHead(read_weights(path, head_numbers(dims, width), like), dims, width) if path else None


def read_proprio(path: Path | None, like: Weights, size: int, width: int) -> ProprioProjector | None:
    """The projector of states of a file, in the dtype and on the device of other weights."""
    return ProprioProjector(read_weights(path, proprio_numbers(size, width), like), size, width) if path else None
