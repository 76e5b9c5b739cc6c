"""SmolVLA as an architecture of flow-matching checkpoints (policies/flow/published.py)."""

from __future__ import annotations

import re
from functools import partial

from edgeflow.policies.flow.footprint import Shapes, StackNumbers, VisionNumbers, WeightNumbers
from edgeflow.policies.flow.images import Margin
from edgeflow.policies.flow.prompts import TaskTexts
from edgeflow.policies.flow.published import FlowArchitecture
from edgeflow.policies.smolvla.config import SmolVLAConfig
from edgeflow.policies.smolvla.network import SmolVLANetwork, read_network, sizes_of

DECODER = ("text_model.layers.", "lm_expert.layers.")
FLOATS = ("action_", "state_proj")


def architecture_of(config: SmolVLAConfig) -> FlowArchitecture[SmolVLANetwork]:
    """The architecture of a configuration."""
    layers = len(config.cross)
    return FlowArchitecture(
        family="smolvla",
        flow=config.flow,
        sizes=sizes_of(config),
        stacks=StackNumbers(
            layers=layers,
            width=max(config.width, config.expert_width),
            inner=max(config.inner, config.expert_inner),
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
        ),
        vision=VisionNumbers(
            patches=(config.flow.side // config.patch) ** 2,
            width=config.vision_width,
            inner=config.vision_inner,
            rows=config.image_rows,
        ),
        weights=partial(_weights, layers),
        margin=Margin.LEFT_TOP,
        bounded=False,
        texts=TaskTexts,
        network=partial(read_network, config),
    )


def _weights(layers: int, shapes: Shapes) -> WeightNumbers:
    """Without the head of the language model and without its layers behind the first so many, which are not used."""
    used = {name: shape for name, shape in shapes.items() if _layer_of(name) < layers}
    return WeightNumbers.of(used, decoder=DECODER, floats=FLOATS, unused=("vlm.lm_head",))


def _layer_of(name: str) -> int:
    """The index of the language model's layer that a tensor belongs to, -1 for one of none."""
    found = re.search(r"\btext_model\.layers\.(\d+)\.", name)
    return int(found[1]) if found else -1
