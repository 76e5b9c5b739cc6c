"""The network that a co-simulation is about: of a checkpoint directory, or a published one by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeflow.kernels.awq import GROUPS
from edgeflow.lab.kv260 import constants
from edgeflow.lab.kv260.network import PUBLISHED
from edgeflow.lab.kv260.sizes import check_fits
from edgeflow.lab.plain_heads import read_with_heads
from edgeflow.models.llama import LlamaConfig
from edgeflow_client.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Subject:
    """A decoder and the group of its macros. checkpoint: its directory, None for a published configuration."""

    name: str
    config: LlamaConfig
    group: int
    checkpoint: Path | None


def subject(model: str, group: int | None) -> Subject:
    """Find a network by name or path; its weights are not read.

    group: by default the one that the checkpoint is quantised in, else the paper's. ConfigError for what is neither a
    checkpoint nor a known name; CheckpointError for a checkpoint that is not served, or that the KV260 cannot hold.
    """
    about = _found(model, group)
    check_fits(about.name, about.config, about.group)
    return about


def _found(model: str, group: int | None) -> Subject:
    if group is not None and group not in GROUPS:
        raise ConfigError(f"group: must be one of {', '.join(map(str, GROUPS))}, got {group}")
    usual = int(constants.GROUP.value)
    if model in PUBLISHED:
        return Subject(model, PUBLISHED[model], group or usual, None)
    path = Path(model).expanduser()
    if not path.is_dir():
        raise ConfigError(f"model: {model} is neither a checkpoint directory nor one of {', '.join(PUBLISHED)}")
    published = read_with_heads(path, "the accelerator")
    stated = published.quantization.group if published.quantization else None
    if group is not None and stated is not None and group != stated:
        raise ConfigError(f"group: {model} is quantised in groups of {stated}, got {group}: leave --group out")
    return Subject(model, published.text, group or stated or usual, path)
