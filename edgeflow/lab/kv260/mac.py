"""The accelerator's arithmetic to the last bit (On-Device Qwen2.5, section III-B, figure 4).

A MACRO_MAC unit is an array of 8 x 8 processing elements (PEs): 8 inputs x 8 outputs per step, G / 8 steps per macro.
All arithmetic is IEEE 754 binary32, each result rounded to nearest even, with subnormals, never fused:

- PE: (q - z) * (x * s), the inner product first;
- adder tree of an output over its 8 inputs: ((p0 + p1) + (p2 + p3)) + ((p4 + p5) + (p6 + p7));
- partial sum: acc + tree, from +0.0 at the first macro of a block on through all macros of the block.

NaN results have the bits 0x7FC00000. Outputs do not depend on each other, so the model computes all at once, in the
order of one: NumPy's operations on single elements are the accelerator's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.kv260.macro import HEAD_WORDS, NIBBLE_ORDER, OUTPUTS, SCALE_WORDS, Words

STEP = 8  # inputs of a unit per step
CANONICAL_NAN = np.array(0x7FC00000, np.uint32).view(np.float32)

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class UnpackedMacros:
    """The output of the unpacking unit."""

    integers: NDArray[np.int8]
    """Q - z, int8 [E, N]."""
    scales: Floats
    """float32 [E/G, N]."""

    @property
    def nbytes(self) -> int:
        return self.integers.nbytes + self.scales.nbytes


def unpack_unit(macros: Words) -> UnpackedMacros:
    """Integers and scales of macros [B, E/G, 8 + G], of N = 8 B outputs."""
    blocks, groups, words = macros.shape
    halves = np.ascontiguousarray(macros[..., :SCALE_WORDS]).view(np.float16)  # [B, E/G, 8]
    scales = halves.astype(np.float32).transpose(1, 0, 2).reshape(groups, blocks * OUTPUTS)
    zeros = _nibbles(macros[..., SCALE_WORDS])  # [B, E/G, 8]
    weights = _nibbles(macros[..., HEAD_WORDS:])  # [B, E/G, G, 8]
    integers = (weights - zeros[:, :, None]).transpose(1, 2, 0, 3)
    return UnpackedMacros(integers.reshape(groups * (words - HEAD_WORDS), blocks * OUTPUTS), scales)


def sums(weight: UnpackedMacros, x: Floats) -> Floats:
    """[m, N]: the accelerator's sums for the rows of x, float32 [m, E]."""
    (inputs, outputs), group = weight.integers.shape, weight.integers.shape[0] // weight.scales.shape[0]
    accumulated = np.zeros((x.shape[0], outputs), np.float32)
    with np.errstate(all="ignore"):  # infinities and NaN are valid results
        for first in range(0, inputs, STEP):
            taken = slice(first, first + STEP)
            products = x[:, taken, None] * weight.scales[first // group]  # [m, 8, N]
            products *= weight.integers[taken].astype(np.float32)
            accumulated += _tree(products)
    accumulated[np.isnan(accumulated)] = CANONICAL_NAN
    return accumulated


def _tree(products: Floats) -> Floats:
    """Sum products [m, 8, N] in the tree's order: [m, N]."""
    pairs = products[:, 0::2] + products[:, 1::2]
    quarters = pairs[:, 0::2] + pairs[:, 1::2]
    total: Floats = quarters[:, 0] + quarters[:, 1]
    return total


def _nibbles(words: Words) -> NDArray[np.int8]:
    """[..., 8]: the eight 4-bit integers of a word, by output."""
    nibbles = np.empty((*words.shape, OUTPUTS), np.int8)
    for nibble, output in enumerate(NIBBLE_ORDER):
        nibbles[..., output] = words >> 4 * nibble & 15
    return nibbles
