"""Checkpoints of flow-matching families before their weights are read: what they need, and how they are loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.engine.flow.guidance import RTCSettings, Schedule
from edgeflow.engine.flow.policy import StagedNetwork
from edgeflow.engine.policy import Footprint, Placement
from edgeflow.kernels.kv.formats import KVShape
from edgeflow.models.checkpoint import tensor_shapes
from edgeflow.models.quantization import quantised_bytes
from edgeflow.policies.flow.config import FlowCheckpoint, FlowConfig, FlowSettings
from edgeflow.policies.flow.network import PrefixedNetwork
from edgeflow.policies.flow.policy import UNNORM_KEYS, DenoisingPolicy, FlowParts, Margin, Texts, TokenizedTexts
from edgeflow.policies.lerobot import STATE

LIVE = 8
"""Rows of a tower's width that are in memory at once for each patch."""
Shapes = Mapping[str, tuple[int, ...]]
"""Tensors by their published names."""
CPU = torch.device("cpu")
DEFAULT_HORIZON = 10
"""Rows that are drawn to the chunk being played where nothing else is configured, as in LeRobot."""
Network = TypeVar("Network", bound=PrefixedNetwork)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackNumbers:
    """Sizes of both stacks: the wider one's width and inner, the numbers of queries and of keys."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNumbers:
    """Weights that are loaded, in numbers. decoder: of the stacks' projections; floats: those that stay in float32.
    quantised: bytes of those in 4 bits."""

    decoder: int
    floats: int
    others: int
    quantised: int = 0

    @classmethod
    def of(
        cls,
        shapes: Shapes,
        *,
        decoder: tuple[str, ...],
        floats: tuple[str, ...],
        unused: tuple[str, ...],
    ) -> WeightNumbers:
        """The others say what a name contains."""
        loaded = {name: shape for name, shape in shapes.items() if not _has(name, unused)}
        quantised = quantised_bytes(loaded)
        sums = {"decoder": 0, "floats": 0, "others": 0}
        for name in loaded.keys() - quantised.keys():
            kinds = (kind for kind, parts in (("floats", floats), ("decoder", decoder)) if _has(name, parts))
            sums[next(kinds, "others")] += math.prod(loaded[name])
        return cls(**sums, quantised=sum(quantised.values()))


def _has(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionNumbers:
    """Sizes of a tower. patches, rows: of an image, before and behind the projection."""

    patches: int
    width: int
    inner: int
    rows: int


def footprint(
    weights: WeightNumbers,
    stacks: StackNumbers,
    vision: VisionNumbers,
    flow: FlowConfig,
    sizes: FlowSizes,
    dtype: torch.dtype,
) -> Footprint:
    """Memory of the weights, of a session's slots with their state, and of the activations of a row and of a frame."""
    cameras, widths = len(flow.cameras), (stacks.heads + 2 * stacks.kv_heads) * stacks.head_dim
    patch = LIVE * vision.width + 2 * vision.inner
    return Footprint(
        decoder=weights.decoder,
        other=weights.others + weights.floats * torch.float32.itemsize // dtype.itemsize,
        quantised=weights.quantised,
        slots=sizes.steps + 1,
        step_rows=sizes.step_rows,
        kv=KVShape(layers=stacks.layers, capacity=0, kv_heads=stacks.kv_heads, head_dim=stacks.head_dim, dtype=dtype),
        positions=cameras * vision.rows + sizes.closing + sizes.step_rows,
        row_bytes=(4 * stacks.width + 2 * widths + 3 * stacks.inner) * dtype.itemsize,
        frame_bytes=(cameras * (3 * flow.side**2 + vision.patches * patch) + (sizes.steps + 1) * sizes.state_numbers)
        * torch.float32.itemsize,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowArchitecture(Generic[Network]):
    """The differences between families, for the configuration of one checkpoint.

    sizes: of answers with the checkpoint's number of steps. weights: counts the tensors that are loaded. bounded: the
    state has a range whatever its statistics are. texts: its prompts. network: reads the weights; CheckpointError names
    the tensor at fault.
    """

    family: str
    flow: FlowConfig
    sizes: FlowSizes
    stacks: StackNumbers
    vision: VisionNumbers
    weights: Callable[[Shapes], WeightNumbers]
    margin: Margin
    bounded: bool
    texts: Callable[[TokenizedTexts], Texts]
    network: Callable[[Path, Placement], Network]

    def texts_for(self, network: PrefixedNetwork, tokenizer: Path, tokens: int) -> Texts:
        """The prompts of at most so many tokens. tokenizer: the folder of tokenizer.json."""
        return self.texts(TokenizedTexts(tokenizer, tokens, len(network.prefix.table)))


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
        architecture = self._architecture
        weights = architecture.weights(self._shapes)
        return footprint(weights, architecture.stacks, architecture.vision, architecture.flow, self._sizes, dtype=dtype)

    def load(self, placement: Placement) -> DenoisingPolicy:
        """Read the weights and the tokenizer; CheckpointError says what is wrong with them."""
        architecture, processors = self._architecture, self._checkpoint.processors
        network = architecture.network(self._directory, placement)
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
