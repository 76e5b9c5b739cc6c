"""A checkpoint of π0 or π0.5 whose configuration has been read, and whose weights have not."""

from __future__ import annotations

from pathlib import Path

import torch

from edgeflow.engine.policy import Footprint, Placement
from edgeflow.models.checkpoint import tensor_shapes
from edgeflow.policies.flow.checkpoint import FlowCheckpoint
from edgeflow.policies.flow.images import Margin
from edgeflow.policies.flow.policy import UNNORM_KEYS, DenoisingPolicy, FlowParts
from edgeflow.policies.flow.prompts import TaskTexts, Texts, TokenizedTexts
from edgeflow.policies.flow.published import (
    CPU,
    StackNumbers,
    VisionNumbers,
    WeightNumbers,
    footprint,
    rtc_settings,
)
from edgeflow.policies.lerobot.features import STATE
from edgeflow.policies.pi.config import PiConfig
from edgeflow.policies.pi.network import image_rows, read_network, sizes_of
from edgeflow.policies.pi.prompts import StateTexts

DECODER = ("language_model.layers.", "gemma_expert.model.layers.")
FLOATS = ("vision_tower.", "multi_modal_projector.", "layernorm", "action_", "state_proj", "time_mlp", "norm.dense")
EMBEDDING, HEADS = "language_model.embed_tokens.weight", ("gemma_expert.lm_head", "paligemma.lm_head")


class PublishedPi:
    """A checkpoint directory; CheckpointError for weights that are missing or truncated."""

    def __init__(self, directory: Path, checkpoint: FlowCheckpoint[PiConfig]) -> None:
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
        """Memory, without the heads of language models, which are not used but as an embedding."""
        config = self._config
        text, expert, vision = config.text, config.expert, config.vision
        both = any(EMBEDDING in name for name in self._shapes)
        weights = WeightNumbers.of(self._shapes, decoder=DECODER, floats=FLOATS, unused=HEADS if both else HEADS[:1])
        stacks = StackNumbers(
            layers=text.depth,
            width=max(text.width, expert.width),
            inner=max(text.inner, expert.inner),
            heads=text.heads,
            kv_heads=text.kv_heads,
            head_dim=text.head_dim,
        )
        patches = image_rows(config)
        tower = VisionNumbers(patches=patches, width=vision.width, inner=vision.inner, rows=patches)
        return footprint(weights, stacks, tower, config.flow, self._sizes, dtype=dtype)

    def load(self, placement: Placement) -> DenoisingPolicy:
        """Read the tokenizer, then the weights; CheckpointError says what is wrong with them."""
        config, checkpoint = self._config, self._checkpoint
        network = read_network(self._directory, config, placement)
        processors = checkpoint.processors
        tokenized = TokenizedTexts(processors.tokenizer, processors.tokens, len(network.prefix.table))
        affine = processors.normalisation.inputs.get(STATE)
        parts = FlowParts(
            sizes=self._sizes,
            image_rows=image_rows(config),
            margin=Margin.AROUND,
            texts=texts_of(config, tokenized),
            bounded=config.adaptive or (affine is not None and affine.origin != 0),
            rtc=rtc_settings(checkpoint.settings, config.flow),
        )
        place = placement.device if placement.preprocess_on_device else CPU
        return DenoisingPolicy(config.flow, processors.normalisation, checkpoint.settings, network, parts, place=place)


def texts_of(config: PiConfig, tokenized: TokenizedTexts) -> Texts:
    """The prompts of either policy."""
    return StateTexts(tokenized, config.flow.state) if config.adaptive else TaskTexts(tokenized)
