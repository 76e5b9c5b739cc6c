"""Checkpoints of flow-matching families before their weights are read: what they need, and how they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from edgeflow.engine.flow.frames import FlowSizes, RTCSettings, Schedule
from edgeflow.engine.flow.policy import StagedNetwork
from edgeflow.engine.policy import Footprint, Placement
from edgeflow.kernels.kv.formats import KVShape
from edgeflow.models.checkpoint import Weights, tensor_shapes
from edgeflow.policies.flow.config import FlowCheckpoint, FlowConfig, FlowSettings
from edgeflow.policies.flow.network import FlowStacks, PrefixedNetwork, lerobot_weights
from edgeflow.policies.flow.policy import UNNORM_KEYS, DenoisingPolicy, FlowParts, Margin, Texts, TokenizedTexts
from edgeflow.policies.lerobot import STATE
from edgeflow.policies.tensors import Shapes, WeightNumbers

LIVE = 8
"""Rows of a tower's width that are in memory at once for each patch."""
CPU = torch.device("cpu")
DEFAULT_HORIZON = 10
"""Rows that are drawn to the chunk being played where nothing else is configured, as in LeRobot."""
Network = TypeVar("Network", bound=PrefixedNetwork)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionNumbers:
    """Sizes of a tower. patches, rows: of an image, before and behind the projection."""

    patches: int
    width: int
    inner: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowArchitecture(Generic[Network]):
    """The differences between families, for the configuration of one checkpoint.

    sizes: of answers with the checkpoint's number of steps. weights: counts the tensors that are loaded. bounded: the
    state has a range whatever its statistics are. texts: its prompts. network: of weights; CheckpointError names the
    tensor at fault.
    """

    family: str
    flow: FlowConfig
    sizes: FlowSizes
    stacks: FlowStacks
    vision: VisionNumbers
    weights: Callable[[Shapes], WeightNumbers]
    margin: Margin
    bounded: bool
    texts: Callable[[TokenizedTexts], Texts]
    network: Callable[[Weights, Placement], Network]

    def read_network(self, directory: Path, placement: Placement) -> Network:
        """The network of a checkpoint; CheckpointError names the tensor at fault."""
        return self.network(lerobot_weights(directory, placement), placement)

    def texts_for(self, network: PrefixedNetwork, tokenizer: Path, tokens: int) -> Texts:
        """The prompts of at most so many tokens. tokenizer: the folder of tokenizer.json."""
        return self.texts(TokenizedTexts(tokenizer, tokens, len(network.prefix.table)))

    def footprint(self, weights: WeightNumbers, sizes: FlowSizes, dtype: torch.dtype) -> Footprint:
        """Memory of weights, of a session's slots with their state, and of the activations of a row and of a frame."""
        heads, vision, side = self.stacks.heads, self.vision, self.flow.side
        stacks = self.stacks.prefix.sizes, self.stacks.steps.sizes
        width, inner = max(each.width for each in stacks), max(each.inner for each in stacks)
        cameras, patch = len(self.flow.cameras), LIVE * vision.width + 2 * vision.inner
        numbers = cameras * (3 * side**2 + vision.patches * patch) + (sizes.steps + 1) * sizes.state_numbers
        return Footprint(
            decoder=weights.decoder,
            other=weights.others + weights.floats * torch.float32.itemsize // dtype.itemsize,
            quantised=weights.quantised,
            slots=sizes.steps + 1,
            step_rows=sizes.step_rows,
            kv=KVShape(
                layers=len(heads.kinds), capacity=0, kv_heads=heads.kv_heads, head_dim=heads.head_dim, dtype=dtype
            ),
            positions=cameras * vision.rows + sizes.closing + sizes.step_rows,
            row_bytes=(4 * width + 2 * (heads.q_width + 2 * heads.kv_width) + 3 * inner) * dtype.itemsize,
            frame_bytes=numbers * torch.float32.itemsize,
        )


class PublishedFlow:
    """A checkpoint directory; CheckpointError for weights that are missing or truncated."""

    def __init__(self, directory: Path, checkpoint: FlowCheckpoint[Any], architecture: FlowArchitecture[Any]) -> None:
        self._directory = directory
        self._checkpoint = checkpoint
        self._architecture = architecture
        self._shapes = tensor_shapes(directory)
        settings = checkpoint.settings
        steps, candidates = settings.steps or architecture.sizes.steps, settings.candidates
        self._sizes = replace(architecture.sizes, steps=steps, candidates=candidates)

    @property
    def unnorm_keys(self) -> tuple[str, ...]:
        return UNNORM_KEYS

    def footprint(self, dtype: torch.dtype) -> Footprint:
        """Memory of what is loaded, and of sessions."""
        return self._architecture.footprint(self._architecture.weights(self._shapes), self._sizes, dtype)

    def load(self, placement: Placement) -> DenoisingPolicy:
        """Read the weights and the tokenizer; CheckpointError says what is wrong with them."""
        architecture, processors = self._architecture, self._checkpoint.processors
        network = architecture.read_network(self._directory, placement)
        texts = architecture.texts_for(network, processors.tokenizer, processors.tokens)
        return policy_of(
            self._checkpoint, architecture, sizes=self._sizes, network=network, texts=texts, placement=placement
        )


def policy_of(
    checkpoint: FlowCheckpoint[Any],
    architecture: FlowArchitecture[Any],
    *,
    sizes: FlowSizes,
    network: StagedNetwork,
    texts: Texts,
    placement: Placement,
) -> DenoisingPolicy:
    """The policy of a checkpoint, whatever its networks are."""
    processors, settings = checkpoint.processors, checkpoint.settings
    affine = processors.normalisation.inputs.get(STATE)
    parts = FlowParts(
        sizes=sizes,
        image_rows=architecture.vision.rows,
        margin=architecture.margin,
        texts=texts,
        bounded=architecture.bounded or (affine is not None and affine.origin != 0),
        rtc=rtc_settings(settings, architecture.flow),
    )
    place = placement.device if placement.preprocess_on_device else CPU
    return DenoisingPolicy(architecture.flow, processors.normalisation, settings, network, parts, place=place)


def rtc_settings(settings: FlowSettings, config: FlowConfig) -> RTCSettings | None:
    """Real-time chunking as configured."""
    if settings.rtc is None:
        return None
    trained = settings.rtc.trained_max_delay or config.trained_delay
    return RTCSettings(
        schedule=Schedule(settings.rtc.schedule),
        execution_horizon=settings.rtc.execution_horizon or min(DEFAULT_HORIZON, config.chunk),
        max_guidance_weight=settings.rtc.max_guidance_weight,
        trained_max_delay=trained if settings.rtc.mode == "trained" else 0,
    )
