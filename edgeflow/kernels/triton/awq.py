"""LINEAR with weights of 4 bits (kernels/awq.py), whose codes become numbers in registers.

A group's codes minus its zero point are integers, which 16-bit floats hold exactly. They are multiplied with the
rows as they are, and the sum over the group, times its scale, is added in float32: no weight is rounded. The same code
serves one row as well as hundreds, compiled for tiles of several sizes. Where the tiles do not fill the device, the
inputs are split, and a second kernel adds the parts in their order, so that a result never depends on timing.

The weight lies in the order in which the kernel reads it: chunks of 128 inputs, output after output. In a chunk an
output has 64 contiguous bytes, and the next output the next 64, so that the tile of a program is one piece of memory
for any number of outputs. A word holds eight codes. A shift and a mask leave two of them, of neighbouring inputs, in
its halves, which is how matrix units take a pair of 16-bit floats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from edgeflow.kernels.awq import AwqWeight
from edgeflow.kernels.triton.launch import INTERPRETED, cdiv, multiprocessors

BFLOAT, HALF = (0x4310, 144.0), (0x6410, 1040.0)
"""Bits and value of a float whose neighbours are integers: adding d to its bits adds d to it, from -15 to 15."""
ROW_BLOCKS = (16, 32, 64)
UNPACKING = 32
"""Rows whose products with a tile take as long as making the tile's numbers."""
BLOCKS_EACH = 4
"""Blocks per multiprocessor whose loads together keep the memory busy."""
LEAST_CHUNKS, MOST_SPLITS = 4, 16
"""Chunks of a part at least, so that loads run ahead of products; parts at most, which are written and read again."""
MOST_ROWS = 8192 + 16
"""Rows of a call for which kernels are compiled ahead: the largest `chat.prefill_chunk`, and a token of each slot."""
ADDED = 1024
"""Outputs of a block whose parts are added."""


@triton.jit(do_not_specialize=["m", "chunks", "part"])
def _multiply(
    x, words, scales, zeros, bias, out, m, N, E, stride, chunks, part,
    G: tl.constexpr, CHUNK: tl.constexpr, RUN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BITS: tl.constexpr, VALUE: tl.constexpr, STEPS: tl.constexpr, WIDE: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Grid [blocks of rows, blocks of outputs, splits]. x [m, E] with rows `stride` apart; words, scales, zeros: of
    `AwqChunks`; out [splits, m, N]: products with `part` chunks each. STEPS: dtype of codes less zero points, in which
    VALUE has BITS; WIDE: products in float32.

    A shift and a mask leave two codes in the halves of a word; one addition gives both the bits of VALUE + code - zero.
    BLOCK_M and the dtype of out follow from the number of rows: `AWQParameters.row_counts` has one for each kernel.
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    live, kept = row < m, output < N
    first = split * part
    group = first.to(tl.int64) * (CHUNK // G) * N
    rows = x + row.to(tl.int64)[:, None] * stride  # [BLOCK_M, 1]
    tile = words + (first.to(tl.int64) * N + output)[:, None] * (RUN // 2) + tl.arange(0, RUN // 2)[None, :]
    scale_at = scales + group + output
    zero_at = zeros + group // 2 + output // 2
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for chunk in range(first, tl.minimum(first + part, chunks)):
        codes = tl.load(tile, mask=kept[:, None], other=0)  # [BLOCK_N, RUN / 2]
        for of_chunk in tl.static_range(CHUNK // G):
            scale = tl.load(scale_at + of_chunk * N, mask=kept, other=0.0).to(tl.float32)
            pair = tl.load(zero_at + of_chunk * (N // 2), mask=kept, other=0).to(tl.int32)
            zero = (pair >> (output % 2 * 4)) & 15
            offset = ((BITS - zero) * 0x10001)[:, None]
            summed = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            for run in tl.static_range(G // RUN):
                place = of_chunk * (G // RUN) + run
                at = (chunk * CHUNK + place * RUN + tl.arange(0, RUN))[None, :]
                numbers = tl.load(rows + at, mask=live[:, None] & (at < E), other=0.0).T  # [RUN, BLOCK_M]
                halves = ((codes >> (4 * place)) & 0x000F000F) + offset
                even = halves.to(tl.int16).to(STEPS, bitcast=True)
                odd = (halves >> 16).to(tl.int16).to(STEPS, bitcast=True)
                steps = tl.join(even, odd).reshape(BLOCK_N, RUN) - VALUE
                if WIDE:
                    summed = tl.dot(steps.to(tl.float32), numbers.to(tl.float32), summed, input_precision="ieee")
                else:
                    summed = tl.dot(steps, numbers, summed)
            total += summed * scale[:, None]
        tile += N * (RUN // 2)
        scale_at += N * (CHUNK // G)
        zero_at += N // 2 * (CHUNK // G)
    if HAS_BIAS:
        total += tl.load(bias + output, mask=kept, other=0.0).to(tl.float32)[:, None]
    place = (split * m + row).to(tl.int64)[None, :] * N + output[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=live[None, :] & kept[:, None])


@triton.jit(do_not_specialize=["m", "splits"])
def _add_parts(parts, bias, out, m, N, splits, MOST: tl.constexpr, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Grid [m, blocks of N]. parts [splits, m, N] float32, added from the first to the last; splits: up to MOST.
    out [m, N]."""
    row = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kept = output < N
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(MOST):
        total += tl.load(parts + (split * m + row) * N + output, mask=kept & (split < splits), other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + output, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + row * N + output, total.to(out.dtype.element_ty), mask=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class AWQParameters:
    """Parameters of the kernel, as the operator table chooses them."""

    block_m: int = 0
    """Rows of a tile."""
    block_n: int = 128
    """Outputs of a tile."""
    splits: int = 0
    """Parts into which the inputs are split; 0: chosen by the sizes of the call."""
    num_warps: int = 0
    num_stages: int = 4

    def of_call(self, rows: int, outputs: int, chunks: int, multiprocessors: int) -> AWQParameters:
        """With no 0 left: the tiles with the least to compute, and as many splits as the device needs to be full."""
        block_m = self.block_m or min(ROW_BLOCKS, key=lambda block: cdiv(rows, block) * (block + UNPACKING))
        tiles = cdiv(rows, block_m) * cdiv(outputs, self.block_n)
        wanted = max(1, min(MOST_SPLITS, BLOCKS_EACH * multiprocessors // tiles, chunks // LEAST_CHUNKS))
        part = cdiv(chunks, min(self.splits, MOST_SPLITS) or 1 << wanted.bit_length() - 1)
        return replace(
            self, block_m=block_m, splits=cdiv(chunks, part), num_warps=self.num_warps or (4 if block_m < 64 else 8)
        )

    def row_counts(self, outputs: int, chunks: int, multiprocessors: int) -> list[int]:
        """The first number of rows, of up to MOST_ROWS, with each kernel that is compiled apart.

        Only tiles, and whether there is more than one split, make another kernel, and both change with whole tiles.
        """
        first: dict[tuple[int, bool], int] = {}
        for rows in range(1, MOST_ROWS + 1, min(ROW_BLOCKS)):
            found = self.of_call(rows, outputs, chunks, multiprocessors)
            first.setdefault((found.block_m, found.splits > 1), rows)
        return list(first.values())


class AwqLinear:
    """The kernel with a weight in its order. borrowed: another one has the weight and counts its bytes."""

    def __init__(
        self, chunks: AwqChunks, bias: Tensor | None, tuning: AWQParameters, *, borrowed: bool = False
    ) -> None:
        self._chunks = chunks
        self._bias = bias
        self._tuning = tuning
        self._borrowed = borrowed

    def retuned(self, **tuning: int) -> AwqLinear:
        """The linear with other parameters over the same memory. tuning: fields of `AWQParameters`."""
        return AwqLinear(self._chunks, self._bias, AWQParameters(**tuning), borrowed=True)

    @property
    def nbytes(self) -> int:
        return 0 if self._borrowed else self._chunks.nbytes

    def compile(self, dtype: torch.dtype) -> None:
        """Run every kernel once that calls with rows in this dtype launch."""
        (outputs, inputs), words = self._chunks.shape, self._chunks.words
        for rows in self._tuning.row_counts(outputs, len(words), multiprocessors(words.device)):
            self(torch.zeros(rows, inputs, dtype=dtype, device=words.device))

    def __call__(self, x: Tensor) -> Tensor:
        """x [m, E], its last dimension contiguous → [m, N]"""
        weight, (outputs, inputs), count = self._chunks, self._chunks.shape, len(self._chunks.words)
        rows, device = len(x), x.device
        out = torch.empty(rows, outputs, dtype=x.dtype, device=device)
        if not rows:
            return out
        tuning = self._tuning.of_call(rows, outputs, count, multiprocessors(device))
        splits, bias = tuning.splits, self._bias
        parts = torch.empty(splits, rows, outputs, device=device) if splits > 1 else out
        wide = x.dtype == torch.float32 or (INTERPRETED and x.dtype == torch.bfloat16)
        steps = (*HALF, tl.float16) if wide or x.dtype == torch.float16 else (*BFLOAT, tl.bfloat16)
        grid = cdiv(rows, tuning.block_m), cdiv(outputs, tuning.block_n), splits
        _multiply[grid](
            x, weight.words, weight.scales, weight.zeros, x if bias is None else bias, parts, rows, outputs, inputs,
            x.stride(0), count, cdiv(count, splits), weight.group, CHUNK, RUN, tuning.block_m, tuning.block_n,
            *steps, wide, bias is not None and splits == 1,
            num_warps=tuning.num_warps, num_stages=tuning.num_stages,
        )  # fmt: skip
        if splits > 1:
            _add_parts[(rows, cdiv(outputs, ADDED))](
                parts, x if bias is None else bias, out, rows, outputs, splits, MOST_SPLITS, ADDED, bias is not None
            )
        return out


def linear(weight: AwqWeight, bias: Tensor | None, **tuning: int) -> AwqLinear:
    """Reorder a weight for the kernel, which needs the given one no longer. tuning: fields of `AWQParameters`."""
    return AwqLinear(AwqChunks.of(weight), bias, AWQParameters(**tuning))


CHUNK = 128
"""Inputs of a chunk; the last one is filled up with codes and scales of 0."""
WORDS = CHUNK // 8
"""Words of a chunk for one output."""
RUN = 2 * WORDS
"""Inputs that one shift leaves of a chunk's words. Nibble i of word j is input RUN i + 2 j; nibble i + 4 the next."""


@dataclass(frozen=True, slots=True, eq=False)
class AwqChunks:
    """words int32 [C, N, 16] of C chunks; scales float16 [C * 128 / G, N]; zeros uint8 [C * 128 / G, N / 2], the
    even output in the low nibble. N is a multiple of 8.
    """

    words: Tensor
    scales: Tensor
    zeros: Tensor
    inputs: int
    """E."""
    group: int
    """G."""

    @classmethod
    def of(cls, weight: AwqWeight) -> AwqChunks:
        """Reorder a weight into new memory."""
        outputs, inputs = weight.shape
        chunks = -(-inputs // CHUNK)
        codes = F.pad(weight.q, (0, chunks * CHUNK - inputs)).view(outputs, chunks, -1, WORDS, 2).to(torch.int32)
        words = torch.zeros(outputs, chunks, WORDS, dtype=torch.int32, device=weight.device)
        for place in range(codes.shape[2]):
            even, odd = codes[:, :, place].unbind(-1)
            words |= even << 4 * place | odd << 16 + 4 * place
        groups = 0, chunks * (CHUNK // weight.group) - weight.scales.shape[1]
        scales, zeros = (F.pad(each, groups).t().contiguous() for each in (weight.scales, weight.zeros))
        words = words.transpose(0, 1).contiguous()
        return cls(words, scales, zeros[:, ::2] | zeros[:, 1::2] << 4, inputs, weight.group)

    @property
    def shape(self) -> tuple[int, int]:
        """N, E"""
        return self.words.shape[1], self.inputs

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.scales.nbytes + self.zeros.nbytes
