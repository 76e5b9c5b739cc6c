"""The networks of SmolVLA (engine/flow/packed.FlowNetwork): SmolVLM for the prefix, an expert of its kind for steps.

Published source: LeRobot's modeling_smolvla.py and smolvlm_with_expert.py. The projections of actions, state and time
are computed in float32 in any dtype.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.engine.policy import Placement
from edgeflow.models.checkpoint import Weights
from edgeflow.models.grouped import CROSS, JOINT, HeadSizes
from edgeflow.models.shape import FlowStacks, NamedStack
from edgeflow.models.siglip import SigLIPTower, TowerSizes, projection, shuffled
from edgeflow.models.stack_norms import RowTimes, StackSizes
from edgeflow.policies.flow.network import PrefixedNetwork, PrefixEmbedding, TimeMixing
from edgeflow.policies.flow.observing import Margin
from edgeflow.policies.flow.policy import FlowArchitecture, TaskTexts, VisionNumbers
from edgeflow.policies.smolvla.config import IMAGE_TOKENS, SmolVLAConfig
from edgeflow.policies.tensors import Shapes, WeightNumbers
from edgeflow_client.errors import CheckpointError

VLM, EXPERT = "vlm_with_expert.vlm.model.", "vlm_with_expert.lm_expert."
DECODER = ("text_model.layers.", "lm_expert.layers.")
FLOATS = ("action_", "state_proj")


class SmolVLANetwork(PrefixedNetwork):
    """weights: by their published names, without the prefix of LeRobot."""

    def __init__(self, config: SmolVLAConfig, weights: Weights, placement: Placement) -> None:
        self._config = config
        flow, floats = config.flow, weights.to(torch.float32)
        images = _images(config, weights.under(VLM), placement)
        table = weights.take(f"{VLM}text_model.embed_tokens.weight", None, config.width)
        special = _special_rows(config, table)
        self.decoder = stacks_of(config).decoder(weights, placement.table)
        self.prefix = PrefixEmbedding(
            image_rows=config.image_rows,
            images=images if special is None else _enclosed(images, special),
            table=table,
            absent=None if special is None else special.repeat(config.absent, 1),
            state=projection(floats, "state_proj", config.width, flow.state_dims, table=placement.table),
        )
        self._mixing = TimeMixing(floats, config.expert_width, flow.dims, flow.periods, table=placement.table)
        self._out = projection(floats, "action_out_proj", flow.dims, config.expert_width, table=placement.table)

    def time_table(self, times: Tensor) -> Tensor:
        """As in FlowNetwork: embeddings [N + 1, E']."""
        return self._mixing.time(times)

    def embed_step(
        self,
        x: Tensor,
        times: RowTimes,
        state: Tensor,  # noqa: ARG002 - it is in the prefix
    ) -> tuple[Tensor, RowTimes | None]:
        """As in FlowNetwork."""
        return self._mixing(x, times).flatten(0, 1).to(self.decoder.dtype), None

    def velocity(self, hidden: Tensor) -> Tensor:
        """[n H, E'] → [n, H, A] float32"""
        velocity: Tensor = self._out(hidden.float().view(-1, self._config.flow.chunk, hidden.shape[1]))
        return velocity


def stacks_of(config: SmolVLAConfig) -> FlowStacks:
    """The stacks of prefix and steps. RoPE is that of the expert, not of the vision-language model."""
    text = StackSizes(width=config.width, inner=config.inner, eps=config.eps)
    expert = StackSizes(width=config.expert_width, inner=config.expert_inner, eps=config.eps)
    return FlowStacks(
        name="smollm",
        heads=HeadSizes(
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            kinds=tuple(CROSS if cross else JOINT for cross in config.cross),
        ),
        prefix=NamedStack(sizes=text, stem=f"{VLM}text_model."),
        steps=NamedStack(sizes=expert, stem=EXPERT),
    )


def _images(config: SmolVLAConfig, weights: Weights, placement: Placement) -> Callable[[Tensor], Tensor]:
    """Rows of images: tower, connector, and the scale of embeddings."""
    sizes = TowerSizes(
        width=config.vision_width,
        inner=config.vision_inner,
        layers=config.vision_layers,
        heads=config.vision_heads,
        patch=config.patch,
        grid=config.grid,
    )
    tower = SigLIPTower(sizes, weights.under("vision_model."), side=config.flow.side, table=placement.table)
    connect = projection(
        weights,
        "connector.modality_projection.proj",
        config.width,
        config.vision_width * config.scale**2,
        bias=False,
        table=placement.table,
    )
    scale = math.sqrt(config.width)
    return lambda pixels: connect(shuffled(tower.forward(pixels), config.scale)) * scale


def _special_rows(config: SmolVLAConfig, table: Tensor) -> Tensor | None:
    """The rows of the special tokens around an image [3, E], as they are in the table; None without them.

    table: [V, E].
    """
    if config.special is None:
        return None
    fake, whole = config.special
    if max(fake, whole) >= len(table):
        raise CheckpointError(f"the embedding has {len(table)} rows, none for {' or '.join(IMAGE_TOKENS)}")
    return table[torch.tensor([fake, whole, fake], device=table.device)]


def _enclosed(images: Callable[[Tensor], Tensor], special: Tensor) -> Callable[[Tensor], Tensor]:
    """Rows of images between those of their special tokens [3, E]."""

    def rows(pixels: Tensor) -> Tensor:
        found = images(pixels).to(special.dtype)
        around = special.expand(len(found), -1, -1)
        return torch.cat([around[:, :2], found, around[:, 2:]], dim=1)

    return rows


def sizes_of(config: SmolVLAConfig) -> FlowSizes:
    """The rows of answers; the state is the last row of the prefix."""
    flow = config.flow
    return FlowSizes(steps=flow.steps, horizon=flow.chunk, dims=flow.dims, causal=True, closing=1)


def architecture_of(config: SmolVLAConfig) -> FlowArchitecture[SmolVLANetwork]:
    """The architecture of a configuration."""
    layers = len(config.cross)
    return FlowArchitecture(
        family="smolvla",
        flow=config.flow,
        sizes=sizes_of(config),
        stacks=stacks_of(config),
        vision=VisionNumbers(
            patches=(config.flow.side // config.patch) ** 2,
            width=config.vision_width,
            inner=config.vision_inner,
            rows=config.image_rows,
            absent=config.absent_rows,
        ),
        weights=partial(_weights, layers),
        time_numbers=config.expert_width,
        margin=Margin.LEFT_TOP,
        bounded=False,
        texts=TaskTexts,
        network=partial(SmolVLANetwork, config),
    )


def _weights(layers: int, shapes: Shapes) -> WeightNumbers:
    """The weights that are used: without the head of the language model and the layers after those of the expert."""
    used = {name: shape for name, shape in shapes.items() if _layer_of(name) < layers}
    return WeightNumbers.of(used, decoder=DECODER, floats=FLOATS, unused=("vlm.lm_head",))


def _layer_of(name: str) -> int:
    """The index of the language model's layer that a tensor belongs to, -1 for one of none."""
    found = re.search(r"\btext_model\.layers\.(\d+)\.", name)
    return int(found[1]) if found else -1
