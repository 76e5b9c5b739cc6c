"""The group size with which a decoder is quantised, and the padding of its MLP."""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.kernels.awq import PER_WORD
from edgeflow.lab.quantize.search.block import GATE, UP
from edgeflow.lab.quantize.search.decoder import linear_shapes
from edgeflow.models.llama import LlamaConfig
from edgeflow_client.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Grouping:
    """The group size and the width of the MLP with which a decoder is quantised."""

    group: int
    inner: int


DEFAULT_GROUPS = (64, 32)


def grouping(config: LlamaConfig, wanted: int | None = None) -> Grouping:
    """The group that was asked for, else the largest of 64 and 32 that divides every input width; CheckpointError where
    none does.

    An MLP width that no group divides is filled up to the next multiple.
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
    """CheckpointError where the GEMM layout cannot hold the outputs of a linear."""
    for linear, (outputs, _) in linear_shapes(config).items():
        outputs = found.inner if linear in (GATE, UP) else outputs
        if outputs % PER_WORD:
            raise CheckpointError(f"{linear} has {outputs} outputs: the GEMM layout needs a multiple of {PER_WORD}")
    return found
