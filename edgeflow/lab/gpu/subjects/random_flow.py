"""Flow-matching policies of random weights in the published shapes, made on the device without any file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from edgeflow.engine.flow.frames import FlowFrame, FlowSizes
from edgeflow.engine.policy import Placement
from edgeflow.lab.gpu.subjects.random_weights import RandomTensors, biased, layer_shapes
from edgeflow.models.checkpoint import Weights
from edgeflow.policies.flow.config import FlowConfig
from edgeflow.policies.flow.network import PrefixedNetwork
from edgeflow.policies.lerobot import ImageInput
from edgeflow.policies.pi import network as pi_network
from edgeflow.policies.pi.config import GEMMA, PI0, PI05, VISION, GemmaSizes, PiConfig, VisionSizes
from edgeflow.policies.smolvla import network as smolvla_network
from edgeflow.policies.smolvla.config import SmolVLAConfig

CAMERAS = 3
VOCABULARY = 2048
"""Number of embeddings; a prompt reads a few rows, however many there are."""
Shapes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowShape:
    """A policy's sizes."""

    name: str
    config: SmolVLAConfig | PiConfig
    text: int
    """Tokens of a prompt."""

    @property
    def sizes(self) -> FlowSizes:
        """The sizes of its answers."""
        config = self.config
        if isinstance(config, SmolVLAConfig):
            return smolvla_network.sizes_of(config)
        return pi_network.sizes_of(config)

    @property
    def image_rows(self) -> int:
        """Rows of an image in a prefix."""
        config = self.config
        return config.image_rows if isinstance(config, SmolVLAConfig) else pi_network.image_rows(config)

    @property
    def prefix(self) -> int:
        """L_P, rows of a prefix."""
        return CAMERAS * self.image_rows + self.text + self.sizes.closing

    def network(self, placement: Placement) -> PrefixedNetwork:
        """Its networks; the same shape gives the same weights."""
        config = self.config
        shapes = dict(smolvla_tensors(config) if isinstance(config, SmolVLAConfig) else pi_tensors(config))
        tensors = RandomTensors(shapes, placement.device, placement.dtype)
        weights = Weights.of(tensors, placement.dtype, placement.device)
        if isinstance(config, SmolVLAConfig):
            return smolvla_network.SmolVLANetwork(config, weights, placement)
        return pi_network.PiNetwork(config, weights, placement)

    def frames(self, count: int) -> list[FlowFrame]:
        """Frames of all cameras, all different."""
        generator = torch.Generator().manual_seed(1)
        flow, sizes = self.config.flow, self.sizes
        side, noise = flow.side, (sizes.candidates, sizes.horizon, sizes.dims)
        return [
            FlowFrame(
                pixel_values=torch.rand((CAMERAS, 3, side, side), generator=generator) * 2 - 1,
                prompt_ids=tuple(range(1, self.text + 1)),
                state=torch.randn(flow.state_dims, generator=generator),
                noise=torch.randn(noise, generator=generator),
            )
            for _ in range(count)
        ]


def _flow(side: int, *, chunk: int = 50, dims: int = 32) -> FlowConfig:
    return FlowConfig(
        cameras=tuple(ImageInput(name=f"camera{index}", height=side, width=side) for index in range(CAMERAS)),
        state=6,
        action=6,
        side=side,
        prompt=64,
        chunk=chunk,
        horizon=chunk,
        steps=10,
        state_dims=dims,
        dims=dims,
        periods=(4e-3, 4.0),
    )


_SMOLVLA = SmolVLAConfig(
    flow=_flow(512),
    width=960,
    inner=2560,
    expert_width=720,
    expert_inner=2048,
    heads=15,
    kv_heads=5,
    head_dim=64,
    eps=1e-5,
    cross=(False, True) * 8,
    scale=4,
    vision_width=768,
    vision_inner=3072,
    vision_layers=12,
    vision_heads=12,
    patch=16,
    grid=32,
    model="",
)
_TINY_SMOLVLA = replace(
    _SMOLVLA,
    flow=_flow(32, chunk=6, dims=8),
    width=48,
    inner=64,
    expert_width=32,
    expert_inner=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    cross=(False, True),
    scale=2,
    vision_width=32,
    vision_inner=48,
    vision_layers=2,
    vision_heads=2,
    patch=8,
    grid=4,
)


def _pi_config(kind: str) -> PiConfig:
    return PiConfig(
        kind=kind,
        flow=_flow(224),
        text=GEMMA["gemma_2b"],
        expert=GEMMA["gemma_300m"],
        vision=VISION,
        precision=None,
    )


def _tiny_pi(kind: str) -> PiConfig:
    return PiConfig(
        kind=kind,
        flow=_flow(28, chunk=6, dims=8),
        text=GemmaSizes(width=48, depth=2, inner=64, heads=4, kv_heads=1, head_dim=16),
        expert=GemmaSizes(width=32, depth=2, inner=48, heads=4, kv_heads=1, head_dim=16),
        vision=VisionSizes(width=32, depth=2, inner=48, heads=2, patch=14),
    )


PUBLISHED = (
    FlowShape(name="SmolVLA", config=_SMOLVLA, text=16),
    FlowShape(name="π0", config=_pi_config(PI0), text=20),
    FlowShape(name="π0.5", config=_pi_config(PI05), text=60),
)
TINY = (
    FlowShape(name="SmolVLA", config=_TINY_SMOLVLA, text=4),
    FlowShape(name="π0", config=_tiny_pi(PI0), text=4),
    FlowShape(name="π0.5", config=_tiny_pi(PI05), text=5),
)


def smolvla_tensors(config: SmolVLAConfig, vocabulary: int = VOCABULARY) -> Shapes:
    """Published names, without `model.`, and shapes of the tensors that a network reads."""
    vlm, expert, narrow = smolvla_network.VLM, smolvla_network.EXPERT, config.expert_width
    yield from _tower(f"{vlm}vision_model.", _vision_of(config), config.grid)
    joined = config.vision_width * config.scale**2
    yield f"{vlm}connector.modality_projection.proj.weight", (config.width, joined)
    yield f"{vlm}text_model.embed_tokens.weight", (vocabulary, config.width)
    wide, kv_width = stack_of(config, config.width, config.inner), config.kv_heads * config.head_dim
    yield from _stack(f"{vlm}text_model.", wide)
    keys = [kv_width if cross else narrow for cross in config.cross]
    yield from _stack(expert, stack_of(config, narrow, config.expert_inner), keys=keys)
    yield from biased("state_proj", config.width, config.flow.state_dims).items()
    yield from _mixing("action_time_mlp", config.flow.dims, narrow)


def pi_tensors(config: PiConfig, vocabulary: int = VOCABULARY) -> Shapes:
    """Published names, without `model.`, and shapes of the tensors that a network reads."""
    vlm, expert = f"{pi_network.BOTH}paligemma.model.", config.expert
    yield from _tower(f"{vlm}vision_tower.vision_model.", config.vision, config.flow.side // config.vision.patch)
    yield from biased(f"{vlm}multi_modal_projector.linear", config.text.width, config.vision.width).items()
    yield f"{vlm}language_model.embed_tokens.weight", (vocabulary, config.text.width)
    yield from _stack(f"{vlm}language_model.", config.text)
    yield from _stack(f"{pi_network.BOTH}gemma_expert.model.", expert, adaptive=config.adaptive)
    if config.adaptive:
        yield from biased("time_mlp_in", expert.width, expert.width).items()
        yield from biased("time_mlp_out", expert.width, expert.width).items()
        yield from biased("action_in_proj", expert.width, config.flow.dims).items()
        yield from biased("action_out_proj", config.flow.dims, expert.width).items()
    else:
        yield from biased("state_proj", expert.width, config.flow.state_dims).items()
        yield from _mixing("action_time_mlp", config.flow.dims, expert.width)


def _mixing(mlp: str, dims: int, width: int) -> Shapes:
    yield from biased("action_in_proj", width, dims).items()
    yield from biased(f"{mlp}_in", width, 2 * width).items()
    yield from biased(f"{mlp}_out", width, width).items()
    yield from biased("action_out_proj", dims, width).items()


def _vision_of(config: SmolVLAConfig) -> VisionSizes:
    return VisionSizes(
        width=config.vision_width,
        depth=config.vision_layers,
        inner=config.vision_inner,
        heads=config.vision_heads,
        patch=config.patch,
    )


def stack_of(config: SmolVLAConfig, width: int, inner: int) -> GemmaSizes:
    """The sizes of one of its stacks, in Gemma's form."""
    return GemmaSizes(
        width=width,
        depth=len(config.cross),
        inner=inner,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
    )


def _tower(prefix: str, sizes: VisionSizes, grid: int) -> Shapes:
    width = sizes.width
    yield f"{prefix}embeddings.patch_embedding.weight", (width, 3, sizes.patch, sizes.patch)
    yield f"{prefix}embeddings.patch_embedding.bias", (width,)
    yield f"{prefix}embeddings.position_embedding.weight", (grid**2, width)
    for index in range(sizes.depth):
        layer = f"{prefix}encoder.layers.{index}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from biased(f"{layer}self_attn.{name}", width, width).items()
        yield from biased(f"{layer}mlp.fc1", sizes.inner, width).items()
        yield from biased(f"{layer}mlp.fc2", width, sizes.inner).items()
        for name in ("layer_norm1", "layer_norm2"):
            yield from biased(f"{layer}{name}", width).items()
    yield from biased(f"{prefix}post_layernorm", width).items()


def _stack(prefix: str, sizes: GemmaSizes, *, keys: list[int] | None = None, adaptive: bool = False) -> Shapes:
    """The shapes of a stack. keys: the width from which each layer's keys and values are projected."""
    width, q_width, kv_width = sizes.width, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    norms = ["norm"]
    for index in range(sizes.depth):
        layer = f"{prefix}layers.{index}."
        sizes_of = width, sizes.inner, q_width, kv_width, keys[index] if keys else width
        yield from layer_shapes(layer, *sizes_of).items()
        norms += [f"layers.{index}.input_layernorm", f"layers.{index}.post_attention_layernorm"]
    for norm in norms:
        if adaptive:
            yield from biased(f"{prefix}{norm}.dense", 3 * width, width).items()
        else:
            yield f"{prefix}{norm}.weight", (width,)
