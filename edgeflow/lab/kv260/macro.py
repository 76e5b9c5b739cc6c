"""AWQ_MACRO: 4-bit weights with their scales and zeros in blocks of 128-bit strips (On-Device Qwen2.5, section III-A).

A macro holds G inputs x 8 outputs as 8 + G little-endian words of 32 bits:

- words 0 to 3, one strip: 8 scales in FP16, output j in bits 16 j to 16 j + 15 of the strip;
- word 4: 8 zeros of 4 bits. Words 5 to 7 are 0 and complete the strip;
- word 8 + i: the 8 weights of input i, 4 words per strip.

In a word of weights or zeros, nibble i belongs to output NIBBLE_ORDER[i], as in AutoAWQ's GEMM layout. So these words
are AutoAWQ's own, and packing only moves them. The paper does not give the order of strips, words and channels; it
is stated here and in the JSON of every file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeflow.kernels.awq import GROUPS, ORDER
from edgeflow_client.errors import CheckpointError

OUTPUTS = 8  # of a macro
CHANNELS = 4
NIBBLE_ORDER = ORDER  # nibble i of a word belongs to output NIBBLE_ORDER[i]
SCALE_WORDS = 4
HEAD_WORDS = 8  # before the weights: scales, zeros, padding

Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class MacroShape:
    """Sizes of a linear [N, E] in macros of G inputs. CheckpointError if macros cannot hold it."""

    outputs: int
    inputs: int
    group: int
    name: str = "linear"
    """Name of the linear, for messages."""

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            known = ", ".join(map(str, GROUPS))
            raise CheckpointError(f"{self.name}: a macro holds groups of {known} inputs, found {self.group}")
        for what, size, divisor in (("outputs", self.outputs, OUTPUTS), ("inputs", self.inputs, self.group)):
            if size < divisor or size % divisor:
                raise CheckpointError(f"{self.name}: {what} must be a multiple of {divisor}, found {size}")

    @property
    def blocks(self) -> int:
        """Blocks of 8 outputs."""
        return self.outputs // OUTPUTS

    @property
    def macros(self) -> int:
        """Macros of a block."""
        return self.inputs // self.group

    @property
    def words(self) -> int:
        """Words of 32 bits of a macro."""
        return HEAD_WORDS + self.group

    def channel_shape(self, channel: int) -> tuple[int, int, int]:
        """Blocks, macros per block and words per macro of a channel."""
        return len(range(channel, self.blocks, CHANNELS)), self.macros, self.words

    def channel_bytes(self, channel: int) -> int:
        """Bytes that a channel streams for one row."""
        blocks, macros, words = self.channel_shape(channel)
        return 4 * blocks * macros * words

    @property
    def nbytes(self) -> int:
        """Bytes of all channels."""
        return sum(map(self.channel_bytes, range(CHANNELS)))


@dataclass(frozen=True, slots=True, eq=False)
class GemmWords:
    """A linear in AutoAWQ's GEMM layout: qweight int32 [E, N/8], qzeros int32 [E/G, N/8], scales float16 [E/G, N]."""

    qweight: NDArray[np.int32]
    qzeros: NDArray[np.int32]
    scales: NDArray[np.float16]

    def shape(self, name: str = "linear") -> MacroShape:
        """The sizes; CheckpointError if the arrays do not fit together or macros cannot hold them."""
        if any(array.ndim != 2 for array in (self.qweight, self.qzeros, self.scales)) or not self.scales.shape[0]:
            raise CheckpointError(f"{name}: qweight, qzeros and scales must have two dimensions and one group or more")
        inputs, (groups, outputs) = self.qweight.shape[0], self.scales.shape
        _expect(f"{name}.qweight", self.qweight, np.int32, inputs, outputs // OUTPUTS)
        _expect(f"{name}.qzeros", self.qzeros, np.int32, groups, outputs // OUTPUTS)
        _expect(f"{name}.scales", self.scales, np.float16, groups, outputs)
        if inputs % groups:
            raise CheckpointError(f"{name}.scales: {groups} groups do not divide {inputs} inputs")
        return MacroShape(outputs, inputs, inputs // groups, name)


def pack(gemm: GemmWords, name: str = "linear") -> Words:
    """Macros [N/8, E/G, 8 + G] of a linear, in ascending order of outputs, then of inputs. Words are only moved."""
    shape = gemm.shape(name)
    macros = np.zeros((shape.blocks, shape.macros, shape.words), np.uint32)
    scales = np.ascontiguousarray(gemm.scales).view(np.uint32)  # [E/G, N/2]
    macros[..., :SCALE_WORDS] = scales.reshape(shape.macros, shape.blocks, SCALE_WORDS).transpose(1, 0, 2)
    macros[..., SCALE_WORDS] = gemm.qzeros.view(np.uint32).T
    weights = gemm.qweight.view(np.uint32).reshape(shape.macros, shape.group, shape.blocks)
    macros[..., HEAD_WORDS:] = weights.transpose(2, 0, 1)
    return macros


def unpack(macros: Words, name: str = "linear") -> GemmWords:
    """The exact inverse of `pack`; CheckpointError if padding is not zero."""
    if macros[..., SCALE_WORDS + 1 : HEAD_WORDS].any():
        raise CheckpointError(f"{name}: the padding after the zeros of a macro is not zero")
    blocks, groups, words = macros.shape
    scales = macros[..., :SCALE_WORDS].transpose(1, 0, 2).reshape(groups, blocks * SCALE_WORDS)
    weights = macros[..., HEAD_WORDS:].transpose(1, 2, 0).reshape(groups * (words - HEAD_WORDS), blocks)
    zeros = np.ascontiguousarray(macros[..., SCALE_WORDS].T)
    return GemmWords(weights.view(np.int32), zeros.view(np.int32), scales.view(np.float16))


def split(macros: Words) -> tuple[Words, ...]:
    """The macros of each channel: block b goes to channel b mod 4, so channels differ by at most one block."""
    return tuple(macros[channel::CHANNELS] for channel in range(CHANNELS))


def join(channels: tuple[Words, ...]) -> Words:
    """The exact inverse of `split`."""
    macros = np.empty((sum(map(len, channels)), *channels[0].shape[1:]), np.uint32)
    for channel, mine in enumerate(channels):
        macros[channel::CHANNELS] = mine
    return macros


def _expect(name: str, array: NDArray[Any], dtype: type, *shape: int) -> None:
    if array.shape != shape or array.dtype != dtype:
        expected, found = f"{np.dtype(dtype)} {list(shape)}", f"{array.dtype} {list(array.shape)}"
        raise CheckpointError(f"{name}: expected {expected}, found {found}")
