"""Small linears in 4 bits, and naive twins of the packing and of the accelerator's arithmetic."""

from dataclasses import dataclass

import numpy as np

from edgeflow.lab.kv260.macro import NIBBLE_ORDER, GemmWords


@dataclass(frozen=True)
class PlainLinear:
    """q [N, E] and z [N, E/G], integers from 0 to 15; s [N, E/G] float16."""

    q: np.ndarray
    z: np.ndarray
    s: np.ndarray

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.s.shape[1]

    def gemm(self) -> GemmWords:
        return GemmWords(_words(self.q.T), _words(self.z.T), np.ascontiguousarray(self.s.T))


def random_linear(outputs: int, inputs: int, group: int, seed: int) -> PlainLinear:
    draw = np.random.default_rng(seed)
    q, z = draw.integers(0, 16, (outputs, inputs)), draw.integers(0, 16, (outputs, inputs // group))
    return PlainLinear(q, z, draw.uniform(0.001, 0.1, z.shape).astype(np.float16))


def random_words(outputs: int, inputs: int, group: int, seed: int) -> GemmWords:
    """Any bits at all, so also scales that are subnormal, infinite or NaN."""
    draw = np.random.default_rng(seed)

    def bits(rows: int, columns: int) -> np.ndarray:
        return draw.integers(-(2**31), 2**31, (rows, columns)).astype(np.int32)

    groups = inputs // group
    return GemmWords(
        bits(inputs, outputs // 8), bits(groups, outputs // 8), bits(groups, outputs // 2).view(np.float16)
    )


def naive_strips(linear: PlainLinear, block: int, index: int) -> list[int]:
    """The strips of a macro as integers of 128 bits, bit by bit from the specification."""
    outputs, group = range(8 * block, 8 * block + 8), linear.group
    scales = sum(int(linear.s[n, index].view(np.uint16)) << 16 * j for j, n in enumerate(outputs))
    weights = [0] * (group // 4)
    for i in range(group):
        column = [int(linear.q[n, index * group + i]) for n in outputs]
        weights[i // 4] |= _word(column) << 32 * (i % 4)
    return [scales, _word([int(linear.z[n, index]) for n in outputs]), *weights]


def naive_sums(linear: PlainLinear, x: np.ndarray) -> np.ndarray:
    """[N] for one row [E]: element for element, in the accelerator's order, every result rounded to float32."""
    out = np.zeros(len(linear.q), np.float32)
    with np.errstate(all="ignore"):
        for n in range(len(out)):
            acc = np.float32(0.0)
            for first in range(0, len(x), 8):
                p = [_element(linear, n, e, x[e]) for e in range(first, first + 8)]
                acc = acc + (((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7])))
            out[n] = np.float32(np.nan) if np.isnan(acc) else acc
    return out


def _element(linear: PlainLinear, n: int, e: int, x: np.float32) -> np.float32:
    q, z, s = linear.q[n, e], linear.z[n, e // linear.group], linear.s[n, e // linear.group]
    return np.float32(int(q) - int(z)) * (x * np.float32(s))


def _words(values: np.ndarray) -> np.ndarray:
    """int32 [rows, N/8] from integers [rows, N]."""
    rows = [[_word(row[first : first + 8]) for first in range(0, len(row), 8)] for row in values.tolist()]
    return np.array(rows, np.uint32).view(np.int32)


def _word(column: list[int]) -> int:
    return sum(column[output] << 4 * nibble for nibble, output in enumerate(NIBBLE_ORDER))
