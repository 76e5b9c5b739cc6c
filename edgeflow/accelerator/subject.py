"""The network that a co-simulation is about: of a checkpoint directory, or a published one by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from edgeflow.accelerator import constants
from edgeflow.accelerator.network import PUBLISHED, gemm_shapes_of, tensor_shapes_of
from edgeflow.accelerator.plan import planned
from edgeflow.errors import ConfigError
from edgeflow.kernels.awq import GROUPS
from edgeflow.models.chat import read_published
from edgeflow.models.llama import LlamaConfig

WORDS = ("qweight", "qzeros")  # tensors of 32 bits


@dataclass(frozen=True, slots=True)
class Subject:
    """A decoder and the group of its macros. checkpoint: its directory, None for a published configuration."""

    name: str
    config: LlamaConfig
    group: int
    checkpoint: Path | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of all weights: in FP16, as an AutoAWQ file (tensors without the header), as a macro file (its binary)."""

    fp16: int
    autoawq: int
    macro: int


def subject(model: str, group: int | None) -> Subject:
    """group: by default the one that the checkpoint is quantised in, else the paper's. ConfigError for what is neither
    a checkpoint nor a known name; CheckpointError for a checkpoint that is not served."""
    if group is not None and group not in GROUPS:
        raise ConfigError(f"group: must be one of {', '.join(map(str, GROUPS))}, got {group}")
    usual = int(constants.GROUP.value)
    if model in PUBLISHED:
        return Subject(model, PUBLISHED[model], group or usual, None)
    path = Path(model).expanduser()
    if not path.is_dir():
        raise ConfigError(f"model: {model} is neither a checkpoint directory nor one of {', '.join(PUBLISHED)}")
    published = read_published(path)
    stated = published.quantization.group if published.quantization else None
    if group is not None and stated is not None and group != stated:
        raise ConfigError(f"group: {model} is quantised in groups of {stated}, got {group}")
    return Subject(model, published.text, group or stated or usual, path)


def sizes(config: LlamaConfig, group: int) -> Sizes:
    """From the configuration alone, with all linears of the layers in 4 bits."""
    shapes = gemm_shapes_of(config, group)
    return Sizes(
        fp16=sum(2 * math.prod(shape) for _, shape in tensor_shapes_of(config)),
        autoawq=sum((4 if name.endswith(WORDS) else 2) * math.prod(shape) for name, shape in shapes.items()),
        macro=planned(shapes).nbytes,
    )
