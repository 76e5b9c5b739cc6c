"""A checkpoint to quantise: its files, decoder and group size, and the modules that stay floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from edgeflow.kernels.awq import PER_WORD
from edgeflow.lab.plain_attention import read_with_heads
from edgeflow.lab.quantize.search.block import GATE, UP
from edgeflow.lab.quantize.search.decoder import DecoderTensors, linear_shapes
from edgeflow.models.chat import STEMS
from edgeflow.models.checkpoint import CONFIG_FILE, Weights
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.published import PublishedChat
from edgeflow.text.checkpoint_json import read_json
from edgeflow.text.weight_files import find_weights
from edgeflow_client.errors import CheckpointError

DEFAULT_GROUPS = (64, 32)
VISION = "visual"


@dataclass(frozen=True, slots=True)
class Grouping:
    """The group size and the MLP width with which a decoder is quantised."""

    group: int
    inner: int


def grouping(config: LlamaConfig, wanted: int | None = None) -> Grouping:
    """The requested group, or the larger of 64 and 32 that divides every input width; CheckpointError if neither does.

    An MLP width that no group divides is padded to the next multiple.
    """
    outside = (config.hidden_size, config.q_width)
    tried = (wanted,) if wanted else DEFAULT_GROUPS
    inner = config.intermediate_size
    for group in tried:
        if all(width % group == 0 for width in (*outside, inner)):
            return _packable(config, Grouping(group, inner))
    for group in tried:
        if all(width % group == 0 for width in outside):
            return _packable(config, Grouping(group, -(-inner // group) * group))
    widths, groups = " and ".join(map(str, dict.fromkeys(outside))), " or ".join(map(str, tried))
    raise CheckpointError(f"hidden_size and attention width {widths} are not multiples of a group of {groups}")


def _packable(config: LlamaConfig, found: Grouping) -> Grouping:
    """Raise CheckpointError if the GEMM layout cannot hold the outputs of a linear."""
    for linear, (outputs, _) in linear_shapes(config).items():
        outputs = found.inner if linear in (GATE, UP) else outputs
        if outputs % PER_WORD:
            raise CheckpointError(f"{linear} has {outputs} outputs: the GEMM layout needs a multiple of {PER_WORD}")
    return found


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Source:
    """A float checkpoint to quantise."""

    folder: Path
    config: Mapping[str, Any]
    """The values of config.json."""
    decoder: DecoderTensors
    grouping: Grouping
    kept: tuple[str, ...] = ()
    """Names of modules that are not quantised."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The safetensors files, in the order of their names."""
        return find_weights(self.folder).paths


def open_chat_source(folder: Path, group: int | None = None) -> Source:
    """A Llama, Qwen2, Qwen3 or Qwen2.5-VL checkpoint; CheckpointError for any other, or if it is quantised already.

    group: see `grouping`.
    """
    config = read_json(folder / CONFIG_FILE)
    refuse_quantised(folder, config)
    published = read_with_heads(folder, "quantize")
    weights = Weights(folder, torch.float32, torch.device("cpu"))
    found = grouping(published.text, group)
    return Source(
        folder=folder,
        config=config,
        decoder=_decoder(weights, published, found.inner),
        grouping=found,
        kept=(VISION,) if published.vision is not None else (),
    )


def refuse_quantised(folder: Path, config: Mapping[str, Any]) -> None:
    """CheckpointError for a checkpoint whose weights are quantised."""
    stated = config.get("quantization_config")
    if stated is not None:
        method = stated.get("quant_method") if isinstance(stated, dict) else stated
        raise CheckpointError(f"{folder} is quantised already ({method}): give the float checkpoint")


def _decoder(weights: Weights, published: PublishedChat, inner: int) -> DecoderTensors:
    stems = [stem for stem, _ in reversed(STEMS) if f"{stem}embed_tokens.weight" in weights]
    return DecoderTensors.of(weights, published.text, stem=(stems or [STEMS[0][0]])[0], inner=inner)
