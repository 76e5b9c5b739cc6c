"""The places of a checkpoint's tensors in a macro file: one binary file, described by one JSON (section III-A).

Linears in 4 bits come first, in the order of their names, the four channels of each one after another; then all other
tensors in FP16. Every part starts at a multiple of 16 bytes, the width of a strip. Numbers are little-endian.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from edgeflow.lab.kv260.macro import CHANNELS, NIBBLE_ORDER, OUTPUTS, MacroShape
from edgeflow_client.errors import CheckpointError

FORMAT = "edgeflow awq-macro"
VERSION = 1
BINARY = "macros.bin"
DESCRIPTION = "macros.json"
ALIGNMENT = 16  # bytes
LAYOUT = {
    "macro": "G inputs x 8 outputs, strips of 128 bits, little-endian: scales, zeros, weights",
    "scales": "strip 0: 8 FP16 scales, output j in bits 16 j to 16 j + 15",
    "zeros": "strip 1: 8 zeros of 4 bits in bits 0 to 31, nibbles as in a word of weights; other bits are 0",
    "weights": "strip 2 + t: word w in bits 32 w to 32 w + 31 has the 8 weights of input 4 t + w",
    "nibble_order": list(NIBBLE_ORDER),
    "nibbles": "nibble i of a word belongs to output nibble_order[i], as in AutoAWQ's GEMM layout",
    "channels": "block b of 8 outputs lies in channel b mod 4; blocks in rising order; of a block, macros in rising "
    "order of inputs",
    "tensors": "FP16, row by row",
}
"""The layout in words, for the JSON. The paper's figures 3 and 4 show the parts of a macro, not their order."""


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Bytes of the binary file."""

    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class PlannedLinear:
    """A linear in macros and the span of each channel."""

    shape: MacroShape
    channels: tuple[FileSpan, ...]


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor in FP16."""

    shape: tuple[int, ...]
    span: FileSpan


@dataclass(frozen=True, slots=True)
class MacroFilePlan:
    """The places of all parts in a macro file."""

    linears: Mapping[str, PlannedLinear]
    tensors: Mapping[str, PlannedTensor]
    nbytes: int
    """Bytes of the binary file."""


def planned(shapes: Mapping[str, tuple[int, ...]]) -> MacroFilePlan:
    """The plan of an AutoAWQ checkpoint (GEMM layout), computed only from the shapes of its tensors.

    CheckpointError names a linear that lacks a part, or whose parts do not fit together or into macros.
    """
    stems = [name.removesuffix(".qweight") for name in shapes if name.endswith(".qweight")]
    parts = {f"{stem}.{part}" for stem in stems for part in ("qweight", "qzeros", "scales")}
    linears = {stem: macro_shape(shapes, stem) for stem in sorted(stems, key=_natural)}
    return laid_out(linears, {name: shapes[name] for name in sorted(shapes, key=_natural) if name not in parts})


def laid_out(linears: Mapping[str, MacroShape], tensors: Mapping[str, tuple[int, ...]]) -> MacroFilePlan:
    """The plan of these linears and tensors, in the given order."""
    end = 0

    def take(nbytes: int) -> FileSpan:
        nonlocal end
        span = FileSpan(-(-end // ALIGNMENT) * ALIGNMENT, nbytes)
        end = span.end
        return span

    placed = {
        name: PlannedLinear(shape, tuple(take(shape.channel_bytes(channel)) for channel in range(CHANNELS)))
        for name, shape in linears.items()
    }
    halves = {name: PlannedTensor(tuple(shape), take(2 * math.prod(shape))) for name, shape in tensors.items()}
    return MacroFilePlan(placed, halves, end)


def macro_shape(shapes: Mapping[str, tuple[int, ...]], stem: str) -> MacroShape:
    """The sizes of a linear from the shapes of its qweight, qzeros and scales."""
    inputs, words = _rows_and_columns(shapes, f"{stem}.qweight")
    groups, outputs = _rows_and_columns(shapes, f"{stem}.scales")
    if not groups or inputs % groups or outputs != OUTPUTS * words:
        raise CheckpointError(
            f"{stem}.scales has shape {[groups, outputs]}, expected [groups that divide {inputs}, {OUTPUTS * words}]"
        )
    zeros = _rows_and_columns(shapes, f"{stem}.qzeros")
    if zeros != (groups, words):
        raise CheckpointError(f"{stem}.qzeros has shape {list(zeros)}, expected {[groups, words]}")
    return MacroShape(outputs, inputs, inputs // groups, stem)


def _rows_and_columns(shapes: Mapping[str, tuple[int, ...]], name: str) -> tuple[int, int]:
    if name not in shapes:
        raise CheckpointError(f"{name} is missing: download the checkpoint again")
    shape = shapes[name]
    if len(shape) != 2:
        raise CheckpointError(f"{name} has shape {list(shape)}, expected two dimensions")
    return shape[0], shape[1]


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts layer 10 after layer 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
