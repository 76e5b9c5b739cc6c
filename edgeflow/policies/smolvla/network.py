"""The networks of SmolVLA (engine/flow/policy.FlowNetwork): SmolVLM for the prefix, an expert of its kind for steps.

Published source: LeRobot's modeling_smolvla.py and smolvlm_with_expert.py. The projections of actions, state and time
are computed in float32 in any dtype.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from edgeflow.engine.flow.frames import FlowFrame, FlowSizes, RowTimes
from edgeflow.engine.flow.packed import PackedNetwork
from edgeflow.engine.policy import Placement
from edgeflow.kernels.table.model_shape import ModelShape
from edgeflow.models.checkpoint import Weights
from edgeflow.models.grouped import CROSS, JOINT, GroupedDecoder, HeadSizes
from edgeflow.models.shape import NamedStack, grouped_shape
from edgeflow.models.siglip import SigLIPTower, TowerSizes, projection, shuffled
from edgeflow.models.stack_norms import Condition, StackSizes
from edgeflow.policies.flow.network import PrefixEmbedding, TimeMixing
from edgeflow.policies.flow.policy import Margin, TaskTexts
from edgeflow.policies.flow.published import FlowArchitecture, Shapes, StackNumbers, VisionNumbers, WeightNumbers
from edgeflow.policies.smolvla.config import SmolVLAConfig

PREFIX = "model."
"""The prefix of tensor names in files that LeRobot saves."""
VLM, EXPERT = "vlm_with_expert.vlm.model.", "vlm_with_expert.lm_expert."
NAME = "smollm"
"""Its model_name in the operator table."""
DECODER = ("text_model.layers.", "lm_expert.layers.")
FLOATS = ("action_", "state_proj")


class SmolVLANetwork(PackedNetwork):
    """weights: by their published names, without the prefix of LeRobot."""

    def __init__(self, config: SmolVLAConfig, weights: Weights, placement: Placement) -> None:
        self._config = config
        flow, floats = config.flow, weights.to(torch.float32)
        self.decoder = read_decoder(config, weights, placement)
        self.prefix = PrefixEmbedding(
            image_rows=config.image_rows,
            images=_images(config, weights.under(VLM), placement),
            table=weights.take(f"{VLM}text_model.embed_tokens.weight", None, config.width),
            state=projection(floats, "state_proj", config.width, flow.state_dims, table=placement.table),
        )
        self._mixing = TimeMixing(floats, config.expert_width, flow.dims, flow.periods, table=placement.table)
        self._out = projection(floats, "action_out_proj", flow.dims, config.expert_width, table=placement.table)

    def prefix_rows(self, frame: FlowFrame) -> int:
        """Rows of a frame's prefix."""
        return self.prefix.rows(len(frame.pixel_values), len(frame.prompt_ids))

    def embed_prefix(self, pixel_values: Sequence[Tensor], prompt_ids: Sequence[Tensor], state: Tensor) -> list[Tensor]:
        """As of FlowNetwork."""
        return self.prefix(pixel_values, prompt_ids, state)

    def embed_step(
        self,
        x: Tensor,
        times: RowTimes,
        state: Tensor,  # noqa: ARG002 - it is in the prefix
    ) -> tuple[Tensor, Condition | None]:
        """As of FlowNetwork."""
        return self._mixing(x, times).flatten(0, 1).to(self.decoder.dtype), None

    def velocity(self, hidden: Tensor) -> Tensor:
        """[n H, E'] → [n, H, A] float32"""
        velocity: Tensor = self._out(hidden.float().view(-1, self._config.flow.chunk, hidden.shape[1]))
        return velocity


def read_network(config: SmolVLAConfig, directory: Path, placement: Placement) -> SmolVLANetwork:
    """The network of a checkpoint; CheckpointError names the tensor at fault."""
    weights = Weights(directory, placement.dtype, placement.device)
    prefixed = any(name.startswith(PREFIX) for name in weights)
    return SmolVLANetwork(config, weights.under(PREFIX) if prefixed else weights, placement)


def read_decoder(config: SmolVLAConfig, weights: Weights, placement: Placement) -> GroupedDecoder:
    """Both stacks. RoPE is that of the expert, not of the vision-language model."""
    text, expert = _stacks(config)
    return GroupedDecoder(
        _heads(config),
        (text.sizes, weights.under(text.stem)),
        (expert.sizes, weights.under(expert.stem)),
        name=NAME,
        table=placement.table,
    )


def shape_of(config: SmolVLAConfig, directory: Path, rows: int) -> ModelShape:
    """The sizes and products of both stacks. rows: of a prefix."""
    sizes = sizes_of(config)
    return grouped_shape(
        directory,
        _heads(config),
        *_stacks(config),
        name=NAME,
        rows=rows,
        count=sizes.steps,
        step_rows=sizes.step_rows,
    )


def _heads(config: SmolVLAConfig) -> HeadSizes:
    return HeadSizes(
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        kinds=tuple(CROSS if cross else JOINT for cross in config.cross),
    )


def _stacks(config: SmolVLAConfig) -> tuple[NamedStack, NamedStack]:
    """The stacks of prefix and steps."""
    text = StackSizes(width=config.width, inner=config.inner, eps=config.eps)
    expert = StackSizes(width=config.expert_width, inner=config.expert_inner, eps=config.eps)
    return NamedStack(sizes=text, stem=f"{VLM}text_model."), NamedStack(sizes=expert, stem=EXPERT)


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


def sizes_of(config: SmolVLAConfig) -> FlowSizes:
    """The rows of answers; the state is the last row of the prefix."""
    return FlowSizes(
        steps=config.flow.steps,
        horizon=config.flow.chunk,
        dims=config.flow.dims,
        causal=True,
        closing=1,
    )


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
