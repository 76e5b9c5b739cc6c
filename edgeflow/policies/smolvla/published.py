"""A SmolVLA checkpoint whose configuration has been read, and whose weights have not."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from edgeflow.engine.policy import Footprint, Placement
from edgeflow.models.checkpoint import tensor_shapes
from edgeflow.policies.flow.checkpoint import FlowCheckpoint
from edgeflow.policies.flow.images import Margin
from edgeflow.policies.flow.policy import UNNORM_KEYS, DenoisingPolicy, FlowParts
from edgeflow.policies.flow.prompts import TaskTexts, TokenizedTexts
from edgeflow.policies.flow.published import (
    CPU,
    StackNumbers,
    VisionNumbers,
    WeightNumbers,
    footprint,
    rtc_settings,
)
from edgeflow.policies.lerobot.features import STATE
from edgeflow.policies.smolvla.config import SmolVLAConfig
from edgeflow.policies.smolvla.network import read_network, sizes_of

DECODER = ("text_model.layers.", "lm_expert.layers.")
FLOATS = ("action_", "state_proj")


class PublishedSmolVLA:
    """A checkpoint directory; CheckpointError for weights that are missing or truncated."""

    def __init__(self, directory: Path, checkpoint: FlowCheckpoint[SmolVLAConfig]) -> None:
        self._directory = directory
        self._checkpoint = checkpoint
        self._config = checkpoint.config
        self._shapes = tensor_shapes(directory)
        settings = checkpoint.settings
        self._sizes = sizes_of(checkpoint.config, steps=settings.steps, candidates=settings.candidates)

    @property
    def unnorm_keys(self) -> tuple[str, ...]:
        return UNNORM_KEYS

    def footprint(self, dtype: torch.dtype) -> Footprint:
        """Memory, without the head of the language model and without layers that are not used."""
        config = self._config
        used = {name: shape for name, shape in self._shapes.items() if layer_of(name) < len(config.cross)}
        weights = WeightNumbers.of(used, decoder=DECODER, floats=FLOATS, unused=("vlm.lm_head",))
        stacks = StackNumbers(
            layers=len(config.cross),
            width=max(config.width, config.expert_width),
            inner=max(config.inner, config.expert_inner),
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
        )
        tower = VisionNumbers(
            patches=(config.flow.side // config.patch) ** 2,
            width=config.vision_width,
            inner=config.vision_inner,
            rows=config.image_rows,
        )
        return footprint(weights, stacks, tower, config.flow, self._sizes, dtype=dtype)

    def load(self, placement: Placement) -> DenoisingPolicy:
        """Read the weights and the tokenizer; CheckpointError says what is wrong with them."""
        config, checkpoint = self._config, self._checkpoint
        network = read_network(self._directory, config, placement)
        processors = checkpoint.processors
        tokenized = TokenizedTexts(processors.tokenizer, processors.tokens, len(network.prefix.table))
        affine = processors.normalisation.inputs.get(STATE)
        parts = FlowParts(
            sizes=self._sizes,
            image_rows=config.image_rows,
            margin=Margin.LEFT_TOP,
            texts=TaskTexts(tokenized),
            bounded=affine is not None and affine.origin != 0,
            rtc=rtc_settings(checkpoint.settings, config.flow),
        )
        place = placement.device if placement.preprocess_on_device else CPU
        return DenoisingPolicy(config.flow, processors.normalisation, checkpoint.settings, network, parts, place=place)


def layer_of(name: str) -> int:
    """The index of the language model's layer that a tensor belongs to, -1 for one of none."""
    found = re.search(r"\btext_model\.layers\.(\d+)\.", name)
    return int(found[1]) if found else -1
