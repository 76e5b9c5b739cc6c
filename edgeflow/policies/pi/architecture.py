"""π0 and π0.5 as architectures of flow-matching checkpoints (policies/flow/published.py)."""

from __future__ import annotations

from functools import partial

from edgeflow.policies.flow.footprint import Shapes, StackNumbers, VisionNumbers, WeightNumbers
from edgeflow.policies.flow.images import Margin
from edgeflow.policies.flow.prompts import TaskTexts
from edgeflow.policies.flow.published import FlowArchitecture
from edgeflow.policies.pi.config import PiConfig
from edgeflow.policies.pi.network import PiNetwork, image_rows, read_network, sizes_of
from edgeflow.policies.pi.prompts import StateTexts

DECODER = ("language_model.layers.", "gemma_expert.model.layers.")
FLOATS = ("vision_tower.", "multi_modal_projector.", "layernorm", "action_", "state_proj", "time_mlp", "norm.dense")
EMBEDDING, HEADS = "language_model.embed_tokens.weight", ("gemma_expert.lm_head", "paligemma.lm_head")


def architecture_of(config: PiConfig) -> FlowArchitecture[PiNetwork]:
    """The architecture of a configuration. In π0.5 the prompt holds the state, within its range."""
    text, expert, vision, patches = config.text, config.expert, config.vision, image_rows(config)
    return FlowArchitecture(
        family=config.kind,
        flow=config.flow,
        sizes=sizes_of(config),
        stacks=StackNumbers(
            layers=text.depth,
            width=max(text.width, expert.width),
            inner=max(text.inner, expert.inner),
            heads=text.heads,
            kv_heads=text.kv_heads,
            head_dim=text.head_dim,
        ),
        vision=VisionNumbers(patches=patches, width=vision.width, inner=vision.inner, rows=patches),
        weights=_weights,
        margin=Margin.AROUND,
        bounded=config.adaptive,
        texts=partial(StateTexts, dims=config.flow.state) if config.adaptive else TaskTexts,
        network=partial(read_network, config),
    )


def _weights(shapes: Shapes) -> WeightNumbers:
    """Without the heads of language models, which are not used but as an embedding."""
    both = any(EMBEDDING in name for name in shapes)
    return WeightNumbers.of(shapes, decoder=DECODER, floats=FLOATS, unused=HEADS if both else HEADS[:1])
