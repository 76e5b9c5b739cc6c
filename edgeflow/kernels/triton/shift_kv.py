"""In-place KV shift: all moves of a pass, in all layers, in one launch; slots and lengths are read on the device.

A program owns one block of one position range of a layer's keys or values and carries it through every move in
order, so that a chain 2 → 3, 1 → 2 reads what it must before that is overwritten; no other program touches it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from edgeflow.kernels.kv.layout import on_device
from edgeflow.kernels.triton.launch import cdiv

BLOCK = 2048


@triton.jit(do_not_specialize=["count"])  # one kernel for any number of moves: no compilation within a pass
def _carry(data, moves, count, slot_size, row_size, plane_size, BLOCK: tl.constexpr):
    """Grid [layers * kinds, blocks of a slot]. data [layers, kinds, S, T, KH, D]; moves [count, 3] int64; sizes in
    numbers."""
    plane = data + tl.program_id(0).to(tl.int64) * plane_size
    place = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK], within a slot
    for index in range(0, count):
        source = tl.load(moves + 3 * index)
        target = tl.load(moves + 3 * index + 1)
        size = tl.load(moves + 3 * index + 2) * row_size
        kept = place < size
        value = tl.load(plane + source * slot_size + place, mask=kept)
        tl.debug_barrier()
        tl.store(plane + target * slot_size + place, value, mask=kept)
        tl.debug_barrier()


def shift_kv_chain(data: Tensor, moves: Tensor) -> None:
    """data [layers, kinds, S, T, KH, D], contiguous; moves [M, 3] int64 on its device: source, target, length."""
    layers, kinds, _, capacity, kv_heads, width = data.shape
    row_size = kv_heads * width
    slot_size = capacity * row_size
    if len(moves):
        grid = (layers * kinds, cdiv(slot_size, BLOCK))
        _carry[grid](data, moves, len(moves), slot_size, row_size, data.stride(1), BLOCK)


def shift_kv(data: Tensor, source: int, target: int, length: int) -> None:
    """One move."""
    shift_kv_chain(data, on_device([[source, target, length]], data.device))
